"""News of an answer, at most once an interval."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from support.virtual_time import run_virtual

from omnistage.demo.pace import paced


async def counting(gap_s: float, count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number
        await asyncio.sleep(gap_s)


async def seen(items: AsyncIterator[int], interval_s: float) -> list[tuple[float, int]]:
    loop = asyncio.get_running_loop()
    return [(round(loop.time(), 3), item) async for item in paced(items, interval_s)]


def test_slow_items_come_at_once() -> None:
    assert run_virtual(seen(counting(1.0, 3), 0.1)) == [(0.0, 0), (1.0, 1), (2.0, 2)]


def test_of_fast_items_the_newest_comes_once_an_interval_and_the_last_always() -> None:
    told = run_virtual(seen(counting(0.01, 100), 0.1))
    assert told[0] == (0.0, 0)
    assert told[-1][1] == 99
    assert all(later[0] - sooner[0] >= 0.099 for sooner, later in pairwise(told[:-1]))
    assert 10 <= len(told) <= 12


def test_nothing_ends_without_an_item() -> None:
    assert run_virtual(seen(counting(0.1, 0), 0.1)) == []


def test_a_failure_comes_after_what_was_there_before_it() -> None:
    async def failing() -> AsyncIterator[int]:
        yield 1
        raise ValueError("broken")

    told = []

    async def run() -> None:
        async for item in paced(failing(), 0.1):
            told.append(item)

    with pytest.raises(ValueError, match="broken"):
        run_virtual(run())
    assert told == [1]


def test_whoever_stops_listening_closes_the_source() -> None:
    closed = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.sleep(1000)
        finally:
            closed.append(True)

    async def run() -> None:
        news = paced(source(), 0.1)
        assert await anext(news) == 1
        await news.aclose()

    run_virtual(run())
    assert closed == [True]
