"""The wire between processes."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from omnistage.connectors.contract import Connector
from omnistage.connectors.inprocess import InProcessConnector
from omnistage.connectors.shm import ShmConnector

CONNECTORS: dict[str, Callable[..., Connector]] = {
    "shm": ShmConnector,
    "inprocess": InProcessConnector,
}


def make_connector(
    name: str, directory: Path, options: Mapping[str, int | float | str | bool]
) -> Connector:
    """A connector by name; raises ValueError for an unknown name or option."""
    if name not in CONNECTORS:
        raise ValueError(f"unknown connector {name!r}; known: {', '.join(CONNECTORS)}")
    known = [option for option in inspect.signature(CONNECTORS[name]).parameters][1:]
    for option in options:
        if option not in known:
            raise ValueError(f"connector {name} has no option {option!r}; it has {', '.join(known)}")
    return CONNECTORS[name](directory, **options)
