"""Errors as HTTP responses; refusals are sent before the body is read."""

import asyncio

from fastapi.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from omnistage.server.common.errors import ApiError

LINGER_S = 5.0
"""For so long the rest of a refused body is read and thrown away.

A connection closed with bytes unread is reset, and a reset takes the answer back that the
client has not read yet; most clients read only after they have sent everything.
"""


def response_of(error: ApiError) -> JSONResponse:
    """Return an error in its envelope, with its status and headers."""
    return JSONResponse(error.envelope, error.status, error.headers)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, and end the answer when the client has stopped sending."""

    async def send_then_linger(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send(message)
            return
        await send({**message, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})

    await response_of(error)(scope, receive, send_then_linger)
