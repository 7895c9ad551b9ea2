"""Clients that leave before the answer, once the server has begun with their request."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
from support.servers.server import VERIFY
from support.waiting import until


async def ask_and_hang_up(url: str, has_begun: Callable[[], object], **request: Any) -> None:
    """Post a request that is not answered before `has_begun` holds, and leave then."""
    async with httpx.AsyncClient(timeout=600, verify=VERIFY) as client:
        asking = asyncio.create_task(client.post(url, **request))
        try:
            await until(lambda: asking.done() or has_begun())
        finally:
            asking.cancel()
            await asyncio.wait({asking})
    assert asking.cancelled(), asking.result().text


def hang_up(url: str, has_begun: Callable[[], object], **request: Any) -> None:
    """Do the same where no loop runs."""
    asyncio.run(ask_and_hang_up(url, has_begun, **request))
