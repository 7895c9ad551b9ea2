"""The field `extra`: other arguments of a pipeline, by its own names."""

from typing import Annotated, Any

from pydantic import Field

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import RequestFields

MAX_ARGUMENTS = 64
MAX_NAME = 100
MAX_ITEMS = 1000  # of an argument, with those of lists in it
MAX_DEPTH = 3
MAX_TEXT = 32_000

Extra = Annotated[dict[str, Any], Field(max_length=MAX_ARGUMENTS)]


class ExtraFields(RequestFields):
    """A request to a pipeline, whose other arguments it may give."""

    extra: Extra | None = None

    def check(self) -> None:
        """Raise ApiError for values that are no numbers, texts, booleans or short lists of them."""
        super().check()
        for name, value in (self.extra or {}).items():
            if not 0 < len(name) <= MAX_NAME:
                raise invalid("extra", f"must have names of 1 to {MAX_NAME} characters")
            _check(value, f"extra.{name}")


def _check(value: Any, place: str) -> None:
    num_items, waiting = 0, [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, list):
            num_items += len(one)
            if depth == MAX_DEPTH or num_items > MAX_ITEMS:
                limit = f"at most {MAX_ITEMS} items, nested at most {MAX_DEPTH} deep"
                raise invalid(place, f"must be a list of {limit}")
            waiting += [(item, depth + 1) for item in one]
        elif isinstance(one, str) and len(one) > MAX_TEXT:
            raise invalid(place, f"must have strings of at most {MAX_TEXT} characters")
        elif not (isinstance(one, int | float | str) or (one is None and not depth)):
            raise invalid(place, "must be a number, string or boolean, or a list of them")
