"""A connector as it is registered: its options as a model, and what makes it of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omnistage.connectors.contract import Connector, Losses

Option = int | float | str | bool


class ConnectorOptions(BaseModel):
    """The options of every connector; each has a model of its own that adds to it.

    `credit`: how many chunks of one request may be on their way; 0: any number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    credit: int = Field(default=8, ge=0)


O = TypeVar("O", bound=ConnectorOptions)  # noqa: E741


@dataclass(frozen=True, slots=True)
class ConnectorType(Generic[O]):
    """The object that an entry point of `omnistage.connectors` names.

    `make` gets the folder of the run and the options. `between_processes`: its ends may be in two
    processes, as those of a graph's edges are. `losses`, where channels can be lost: who tells of
    those in the folder of a run, once they are made.
    """

    options: type[O]
    make: Callable[[Path, O], Connector]
    between_processes: bool = True
    losses: Callable[[Path], Losses | None] | None = None


class OptionError(ValueError):
    """An option of a connector is wrong; `option` is its name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


def checked(name: str, model: type[O], options: Mapping[str, Option]) -> O:
    """The options of a connector of this name; raises OptionError with what is allowed."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"]))
        raise OptionError(option, _message(name, model, option, first)) from None


def _message(name: str, model: type[O], option: str, problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        known = ", ".join(sorted(model.model_fields))
        return f"connector {name} has no option {option!r}; it has {known}"
    if problem["type"] == "missing":
        return f"connector {name} needs the option {option!r}"
    allowed = problem["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)
    return f"{allowed}, not {problem['input']!r}"
