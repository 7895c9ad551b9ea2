"""Options that are declared once, as fields of a class with their flag and their help.

The panels of --help and the units are here, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from typer.models import OptionInfo

from omnistage.stage_configs.json_types import Json, JsonMap

LISTEN, LIMITS, MEDIA = "Address", "Keys and limits", "Media"
STAGES, WEB, LOGS = "Stages and GPUs", "Browsers and TLS", "Logs, traces, profiles"
MIB, GIB = 1 << 20, 1 << 30  # beside an option that is given in them: its field has bytes


@dataclass(frozen=True, slots=True)
class Declared:
    """A field with a flag: `keyword` is its name in Python, `kind` the field's type."""

    field: str
    keyword: str
    kind: Any
    flag: OptionInfo
    default: Any
    unit: int = 1

    def value(self, given: Any) -> object:
        """Returns what the field gets for something given, a number of which is in `unit`."""
        if self.kind == tuple[str, ...]:
            return tuple(given or ())
        if isinstance(given, str):
            return Path(given) if self.kind == Path | None else self.kind(given)
        return given if self.unit == 1 else given * self.unit


def declared(options: type) -> Iterator[Declared]:
    """Yields the fields of a class of options, and of those that it groups, that have a flag."""
    for one in fields(options):
        if isinstance(one.type, type) and is_dataclass(one.type):
            yield from declared(one.type)
        elif get_origin(one.type) is Annotated:
            kind, *units, flag = get_args(one.type)
            # Typer has the first name in the place of a default, which is the field's.
            keyword = flag.default.removeprefix("--").replace("-", "_")
            yield Declared(one.name, keyword, kind, flag, one.default, *units)


def given_fields(options: type, given: JsonMap) -> Json:
    """Returns the fields of a class of options that are given by keyword."""
    own = {one.name: one.type for one in fields(options)}
    found = {
        one.field: one.value(given[one.keyword])
        for one in declared(options)
        if one.field in own and one.keyword in given
    }
    for name, kind in own.items():
        if isinstance(kind, type) and is_dataclass(kind):
            found[name] = kind(**given_fields(kind, given))
    return found
