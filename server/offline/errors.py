"""Errors as exceptions: with the status, code and field that the server would answer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from omnistage.server.common.errors import ApiError

if TYPE_CHECKING:
    from omnistage.server.tasks.pieces import Answer


class OmniError(Exception):
    """The base of all of them; `param` is the field to blame, where there is one."""

    status = 500

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = self.status if status is None else status
        self.code = code
        self.param = param


class BadRequest(OmniError):
    """The request asks for what cannot be done, and would again: a status of 400 to 499."""

    status = 400


class StageFailed(OmniError):
    """A stage failed at the request: a status of 500 or more."""


class Unavailable(OmniError):
    """A stage has ended, sleeps or loads again: the same request may succeed later."""

    status = 503


class TimedOut(OmniError):
    """A deadline has passed: of the request, or of one stage."""

    status = 504


class Closed(OmniError):
    """The object was closed before the request had its answer."""

    status = 503


class StartFailed(OmniError):
    """The graph cannot be used, or a stage of it cannot start."""


class SomeFailed(OmniError):
    """Some requests of a list failed; `answers` has, in order, answers and what failed instead."""

    def __init__(self, answers: Sequence["Answer | OmniError"]) -> None:
        failed = [one for one in answers if isinstance(one, OmniError)]
        first = failed[0]
        message = f"{len(failed)} of {len(answers)} requests failed; the first: {first.message}"
        super().__init__(message, status=first.status, code=first.code, param=first.param)
        self.answers = tuple(answers)


def error_of(error: ApiError) -> OmniError:
    """The exception for what the server would answer with this error."""
    kinds = {503: Unavailable, 504: TimedOut}
    kind = kinds.get(error.status, BadRequest if error.status < 500 else StageFailed)
    if error.code == "stopping":
        kind = Closed
    return kind(error.message, status=error.status, code=error.code, param=error.param)


@contextmanager
def as_ours() -> Iterator[None]:
    """Turn the gateway's errors into these exceptions."""
    try:
        yield
    except ApiError as error:
        raise error_of(error) from error
