"""How often the page is told of news."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

T = TypeVar("T")

INTERVAL_S = 0.06


async def paced(items: AsyncIterator[T], interval_s: float = INTERVAL_S) -> AsyncGenerator[T, None]:
    """The newest item, at most once an interval; the last one always.

    Items stand for all before them, so that those in between can be left out.
    """
    newest: list[T] = []
    has_news = asyncio.Event()

    async def collect() -> None:
        try:
            async for item in items:
                newest[:] = [item]
                has_news.set()
        finally:
            has_news.set()

    collecting = asyncio.create_task(collect())
    try:
        while not collecting.done() or newest:
            await has_news.wait()
            has_news.clear()
            if newest:
                yield newest.pop()
                await asyncio.wait([collecting], timeout=interval_s)
            if collecting.done():
                has_news.set()
        await collecting
    finally:
        collecting.cancel()
        await asyncio.wait([collecting])
