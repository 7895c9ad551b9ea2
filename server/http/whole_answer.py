"""Answers that are not streamed: sent once all of it is there."""

import logging
from collections.abc import Coroutine, Mapping

import msgspec
from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from omnistage.server.common.errors import CLIENT_CLOSED_REQUEST
from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import ClientGone, unless_gone

logger = logging.getLogger(__name__)


async def whole_answer(
    http: Request,
    request_id: str,
    making: Coroutine[object, object, Mapping[str, object] | str | bytes],
    headers: Mapping[str, str],
    media_type: str = "application/json",
) -> Response:
    """Returns what `making` makes: JSON, plain text or a file; it is cancelled if the client hangs
    up.
    """
    try:
        async with within_deadline(http.scope):
            made = await unless_gone(http.receive, making)
    except ClientGone:
        logger.debug("%s: the client hung up (499)", request_id)
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if isinstance(made, str):
        return PlainTextResponse(made, headers=dict(headers))
    data = made if isinstance(made, bytes) else msgspec.json.encode(made)
    return Response(data, headers=dict(headers), media_type=media_type)
