"""The end of a wait at a time of the event loop's clock."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from omnistage.server.common.errors import ApiError


def loop_time_in(seconds: float | None) -> float | None:
    """Return the time of the running loop's clock so many seconds from now; None for None."""
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


@asynccontextmanager
async def due_at(loop_time: float | None) -> AsyncGenerator[None, None]:
    """Cancel what runs inside at a time of the loop's clock, if one is given; ApiError then."""
    waiting = asyncio.timeout_at(loop_time)
    try:
        async with waiting:
            yield
    except TimeoutError:
        if not waiting.expired():
            raise
        raise ApiError(504, "The request took longer than its deadline.", code="timeout") from None
