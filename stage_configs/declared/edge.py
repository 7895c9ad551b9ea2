"""An edge of a graph: its ends, its connector, the sizes of its chunks."""

from typing import Annotated, Literal

from pydantic import (
    Field,
    model_validator,
)

from omnistage.connectors import CONNECTORS, connector_type
from omnistage.connectors.options import Option, OptionError, checked
from omnistage.stage_configs.declared.problems import FrozenModel, nearest, problem
from omnistage.stage_configs.kinds import Payload

Size = Annotated[int, Field(strict=True, ge=1, le=1 << 20)]


class ConnectorSpec(FrozenModel):
    """A connector by name, with its options."""

    name: str = "shm"
    options: dict[str, Option] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "options" not in value:
            return {
                "name": value.get("name", "shm"),
                "options": {key: item for key, item in value.items() if key != "name"},
            }
        return value

    @model_validator(mode="after")
    def _is_known(self) -> "ConnectorSpec":
        if self.name not in CONNECTORS.names:
            message = f"unknown connector {self.name!r}; {nearest(self.name, _for_edges())}"
            raise problem(message, "name")
        kind = connector_type(self.name)
        if not kind.between_processes:
            allowed = ", ".join(_for_edges())
            message = f"connector {self.name!r} works inside one process only; allowed: {allowed}"
            raise problem(message, "name")
        try:
            checked(self.name, kind.options, self.options)
        except OptionError as error:
            raise problem(str(error), "options", error.option) from None
        return self


def _for_edges() -> list[str]:
    """The connectors whose ends may be in two processes."""
    return [name for name, kind in CONNECTORS.usable() if kind.between_processes]


class Chunking(FrozenModel):
    """Sizes of an edge's chunks: the first, a ramp, then always `steady`."""

    first: Size = 1
    ramp: tuple[Size, ...] = ()
    steady: Size = 1

    @property
    def size_list(self) -> list[int]:
        """Returns all sizes; the last repeats."""
        return [self.first, *self.ramp, self.steady]


class Edge(FrozenModel):
    """Declares a way from a stage to the next.

    `carries`: the payloads that go along it, where its ends would have a choice.
    """

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    carries: tuple[Payload, ...] = ()
    connector: ConnectorSpec = Field(default_factory=ConnectorSpec)
    chunk: Chunking | Literal["whole"] = Chunking()
    hidden_states: Literal["needed", "all"] = "needed"

    @property
    def chunk_sizes(self) -> list[int]:
        """Sizes of the chunks; none: everything in one."""
        return [] if self.chunk == "whole" else self.chunk.size_list
