"""Forms of edits, and what the stage got of one."""

from typing import Any

import httpx
from support.gateway.serving import RunningGateway
from support.media.pictures import png

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.to_stage import Request

URL = "/v1/images/edits"
PNG = png(48, 32)


def last_request(gateway: RunningGateway) -> Chunk[Request]:
    return gateway.stages.stages["dit"].opened[-1]


def post(client: httpx.Client, files: Any, **fields: str) -> httpx.Response:
    return client.post(URL, data={"prompt": "a hat", **fields}, files=files)
