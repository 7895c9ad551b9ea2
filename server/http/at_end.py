"""What a request holds until it has its whole answer, however that ends."""

from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")


class AtEnd:
    """ASGI middleware: `scope["state"]["at_end"]`, closed when the request has its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        with ExitStack() as stack:
            scope.setdefault("state", {})["at_end"] = stack
            await self._app(scope, receive, send)


def end_of(scope: Scope) -> ExitStack | None:
    """What is closed when the request has its answer, below the middleware."""
    stack: ExitStack | None = scope.get("state", {}).get("at_end")
    return stack


def held(http: Request, context: AbstractContextManager[T]) -> T:
    """Enter a context that is left when the last byte of the request's answer has been sent.

    The answer may be a stream that begins after the endpoint has returned, and one whose events are
    never asked for. Only below the middleware.
    """
    stack = end_of(http.scope)
    assert stack is not None
    return stack.enter_context(context)
