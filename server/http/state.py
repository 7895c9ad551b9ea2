"""The state of one request while it is answered: middleware and its answer write it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.server.common.errors import CLIENT_CLOSED_REQUEST
from omnistage.server.common.outcome import Outcome, of_status
from omnistage.server.common.trace import Trace, following

PLACE = "omnistage.request"  # in an ASGI scope

T = TypeVar("T")

# What begins an answer: of HTTP, or of a WebSocket that is refused or accepted.
STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
SWITCHING = 101  # the status of a WebSocket that was accepted


def start_of(message: Message) -> int | None:
    """The status of the answer that a message begins, whose headers may be added to."""
    if message["type"] not in STARTS:
        return None
    message.setdefault("headers", [])
    status: int = message.get("status", SWITCHING)
    return status


def free() -> None:
    """An allowance that is never used up."""


@dataclass(slots=True)
class RequestState:
    """One request, from its first middleware to the end of its answer."""

    trace: Trace = field(default_factory=Trace)
    key: str | None = None  # a name for the API key that it came with
    due_at: float | None = None  # by when it must be answered, of the loop's clock
    timeout_s: float | None = None  # for each answer of a WebSocket
    charge: Callable[[], None] = free  # ApiError if a WebSocket's client may not ask once more
    status: int | None = None  # of its answer, once that has begun
    reported_outcome: Outcome | None = None  # of a stream whose status was sent before it ended
    at_end: ExitStack = field(default_factory=ExitStack)  # closed when it has its answer

    @property
    def outcome(self) -> Outcome:
        """How it ended: as it was reported, else what the status says, if one was sent."""
        status = CLIENT_CLOSED_REQUEST if self.status is None else self.status
        return of_status(status) if self.reported_outcome is None else self.reported_outcome


class WithState:
    """ASGI middleware: makes the state of each request; outermost, so that all others have it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        state = scope[PLACE] = RequestState()
        with state.at_end, following(state.trace):
            await self._app(scope, receive, send)


def state_of(scope: Scope) -> RequestState:
    """The state of a connection's request, below the middleware."""
    state: RequestState = scope[PLACE]
    return state


def held(http: Request, context: AbstractContextManager[T]) -> T:
    """Enter a context that is left when the last byte of the request's answer has been sent.

    The answer may be a stream that begins after the endpoint has returned, and one whose events are
    never asked for.
    """
    return state_of(http.scope).at_end.enter_context(context)
