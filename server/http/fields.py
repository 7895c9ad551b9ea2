"""A request's fields: checked, refused and warned of here, whichever endpoint they are for."""

from collections.abc import Sequence, Set
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from omnistage.server.errors import ApiError, field_path, unsupported
from omnistage.stages.messages.log_bound import MAX_PARAM_BYTES, shortened

MAX_WARNED = 8
MAX_NAME = 64
WORDS = "{}: {}"  # a field, and what is wrong with it


class RequestFields(BaseModel):
    """What a client can say to an endpoint, or in one of its options."""

    model_config = ConfigDict(extra="allow")

    ignored: ClassVar[Set[str]] = frozenset()
    """Other fields that are accepted without effect and without a warning."""
    refused: ClassVar[Set[str]] = frozenset()
    """Other fields that ask for what is not done; false, null and what is empty ask for nothing."""

    def check(self) -> None:
        """Raise ApiError for fields that ask for what is not done, or that do not go together."""
        extra = self.model_extra or {}
        for name in sorted(self.refused & extra.keys()):
            if extra[name]:
                raise unsupported(name)

    @property
    def unknown(self) -> list[str]:
        """Fields that nobody here knows, and that so have no effect; those of options last."""
        names = sorted((self.model_extra or {}).keys() - self.ignored - self.refused)
        for name in sorted(type(self).model_fields):
            options = getattr(self, name)
            if isinstance(options, RequestFields):
                names += [f"{name}.{key}" for key in options.unknown]
        return names


T = TypeVar("T", bound=BaseModel)


def parse(model: type[T], fields: Any, place: str | None = None, words: str = WORDS) -> T:
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
