"""A request's fields: checked, refused and warned of here, whichever endpoint they are for."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from omnistage.server.common.errors import ApiError, field_path, unsupported
from omnistage.stages.messages.log_bound import MAX_PARAM_BYTES, shortened

MAX_WARNED = 8
MAX_NAME = 64
WORDS = "{}: {}"  # a field, and what is wrong with it
# Fields, each with the values that ask for nothing: its default, and what means the same.
Refused = Mapping[str, Sequence[Any]]


class RequestFields(BaseModel):
    """The fields of a request, or of one of its options."""

    model_config = ConfigDict(extra="allow")

    ignored: ClassVar[Set[str]] = frozenset()
    """Other fields that are accepted without effect and without a warning."""
    refused: ClassVar[Refused] = {}
    """Other fields that ask for what is not done, unless they are null or ask for nothing."""

    def check(self) -> None:
        """Raise ApiError for fields that ask for what is not done, or that do not go together."""
        refuse(self.model_extra or {}, self.refused)

    @property
    def unknown(self) -> list[str]:
        """Fields that nobody here knows, and that so have no effect; those of options last."""
        names = sorted((self.model_extra or {}).keys() - self.ignored - self.refused.keys())
        for name in sorted(type(self).model_fields):
            options = getattr(self, name)
            if isinstance(options, RequestFields):
                names += [f"{name}.{key}" for key in options.unknown]
        return names


def refuse(given: Mapping[str, object], refused: Refused) -> None:
    """Raise ApiError for the first of the refused fields that asks for something."""
    for name in sorted(refused.keys() & given.keys()):
        value = given[name]
        if value is not None and not any(_is_same(value, nothing) for nothing in refused[name]):
            raise unsupported(name)


def _is_same(value: object, nothing: object) -> bool:
    """Compare as JSON does: to Python, 0 is false."""
    return isinstance(value, bool) == isinstance(nothing, bool) and bool(value == nothing)


T = TypeVar("T", bound=BaseModel)


def parse(model: type[T], fields: object, place: str | None = None, words: str = WORDS) -> T:
    """The fields, which are at a place in the body, as their model; ApiError if they are not."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = first["loc"] if place is None else (place, *first["loc"])
        raise refusal_of(location, first["msg"], words) from error


def refusal_of(location: Sequence[int | str], problem: str, words: str = WORDS) -> ApiError:
    """The answer to what pydantic says of a place in the body; FastAPI's own findings, too."""
    param = field_path(location)
    named = shortened(param, MAX_PARAM_BYTES)
    message = words.format(named, problem) if param else "The body must be a JSON object."
    return ApiError(400, message, param=param or None, code="invalid_value")


def warning_headers(unknown: Sequence[str]) -> dict[str, str]:
    """A header that names the fields without effect."""
    if not unknown:
        return {}
    names = [name.encode("ascii", "replace").decode()[:MAX_NAME] for name in unknown[:MAX_WARNED]]
    shown = ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in names)
    more = f" and {len(unknown) - MAX_WARNED} more" if len(unknown) > MAX_WARNED else ""
    return {"x-omnistage-warning": f"unknown fields without effect: {shown}{more}"}
