"""The wire between processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnistage.connectors.contract import Connector
from omnistage.connectors.options import ConnectorType, Option, checked
from omnistage.connectors.registry import Registry

CONNECTORS: Registry[ConnectorType[Any]] = Registry("omnistage.connectors", ConnectorType)


def connector_type(name: str) -> ConnectorType[Any]:
    """A connector by name; raises ValueError with what is known, or why it cannot be used."""
    try:
        return CONNECTORS.load(name)
    except KeyError:
        raise ValueError(
            f"unknown connector {name!r}; known: {', '.join(CONNECTORS.names)}"
        ) from None


def make_connector(name: str, directory: Path, options: Mapping[str, Option]) -> Connector:
    """A connector by name; raises ValueError for an unknown name and for wrong options."""
    kind = connector_type(name)
    return kind.make(directory, checked(name, kind.options, options))
