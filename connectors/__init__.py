"""The wire between processes."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from omnistage.connectors.contract import Connector
from omnistage.connectors.inprocess import InProcessConnector
from omnistage.connectors.shm import ShmConnector

CONNECTORS: dict[str, Callable[..., Connector]] = {
    "shm": ShmConnector,
    "inprocess": InProcessConnector,
}
# Those whose ends may be in two processes, as the ends of a graph's edges are.
BETWEEN_PROCESSES = frozenset(CONNECTORS) - {"inprocess"}


def check_connector(name: str, options: Iterable[str]) -> None:
    """Raise ValueError, with what is allowed, for an unknown name or option."""
    if name not in CONNECTORS:
        raise ValueError(f"unknown connector {name!r}; known: {', '.join(CONNECTORS)}")
    known = list(inspect.signature(CONNECTORS[name]).parameters)[1:]
    for option in options:
        if option not in known:
            raise ValueError(
                f"connector {name} has no option {option!r}; it has {', '.join(known)}"
            )


def make_connector(
    name: str, directory: Path, options: Mapping[str, int | float | str | bool]
) -> Connector:
    """A connector by name; raises ValueError for an unknown name or option."""
    check_connector(name, options)
    return CONNECTORS[name](directory, **options)
