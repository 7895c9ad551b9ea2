"""How often one client may ask: so many requests a minute, reported in OpenAI's headers."""

import math
import time
from collections.abc import Callable
from functools import partial

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.server.common.errors import ApiError
from omnistage.server.http.access.keys import is_guarded
from omnistage.server.http.refusal import refuse
from omnistage.server.http.state import state_of

WINDOW_S = 60.0
MAX_CLIENTS = 10_000


class RateLimit:
    """ASGI middleware: 429 for who has asked `per_minute` times and not waited since.

    A client is a key, or an address where there are no keys. Only POSTs of the API count, and each
    answer that a WebSocket is asked for. Of each client one number is kept: when its allowance is
    whole again.
    """

    def __init__(
        self, app: ASGIApp, per_minute: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._per_minute = per_minute
        self._interval_s = WINDOW_S / per_minute
        self._now = now
        self._whole_at: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            state_of(scope).charge = partial(self._charge_answer, client_of(scope))
        is_counted = scope["type"] == "http" and scope["method"] == "POST"
        if not (is_counted and is_guarded(scope["path"], method=scope["method"])):
            await self._app(scope, receive, send)
            return
        client = client_of(scope)
        wait_s = self._charge(client)
        left_s = max(0.0, self._whole_at.get(client, 0.0) - self._now())
        headers = {
            "x-ratelimit-limit-requests": str(self._per_minute),
            "x-ratelimit-remaining-requests": str(int((WINDOW_S - left_s) / self._interval_s)),
            "x-ratelimit-reset-requests": f"{left_s:.3f}s",
        }

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        if wait_s > 0:
            await refuse(self._error(wait_s), scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _charge_answer(self, client: str) -> None:
        wait_s = self._charge(client)
        if wait_s > 0:
            raise self._error(wait_s)

    def _charge(self, client: str) -> float:
        """Use one request of a client's allowance; for how long it must wait if there is none."""
        now = self._now()
        whole_at = max(now, self._whole_at.pop(client, now)) + self._interval_s
        wait_s = whole_at - now - WINDOW_S
        # Floats: the last of the allowance is not refused for a rounding error.
        if wait_s > 1e-6:
            self._whole_at[client] = whole_at - self._interval_s
            return wait_s
        if len(self._whole_at) >= MAX_CLIENTS:
            del self._whole_at[next(iter(self._whole_at))]  # who has asked least recently
        self._whole_at[client] = whole_at
        return 0.0

    def _error(self, wait_s: float) -> ApiError:
        return ApiError(
            429,
            f"Rate limit reached: {self._per_minute} requests per minute.",
            type="requests",
            code="rate_limit_exceeded",
            retry_after_s=math.ceil(wait_s),
        )


def client_of(scope: Scope) -> str:
    """Who asks: a key, or an address."""
    return state_of(scope).key or str((scope.get("client") or ("?",))[0])
