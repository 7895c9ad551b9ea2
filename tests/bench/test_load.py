"""When requests are sent, in virtual time."""

import asyncio
from itertools import pairwise

import pytest
from support.virtual_time import run_virtual

from omnistage.bench.load import ClosedLoop, Load, OpenLoop, arrivals


def starts_of(load: Load, lasts_s: float) -> tuple[list[tuple[int, float]], int]:
    """Number and start of each request, and how many were in flight at most."""
    starts: list[tuple[int, float]] = []
    in_flight = peak = 0

    async def ask(number: int, due_s: float | None) -> None:
        nonlocal in_flight, peak
        in_flight += 1
        peak = max(peak, in_flight)
        starts.append((number, asyncio.get_running_loop().time()))
        await asyncio.sleep(lasts_s)
        in_flight -= 1

    async def run() -> None:
        await load.run(ask, range(10, 10 + load.num_requests))

    run_virtual(run())
    return starts, peak


def test_a_closed_loop_keeps_its_streams_busy() -> None:
    starts, peak = starts_of(ClosedLoop(3, 8, 0), lasts_s=1.0)
    assert peak == 3
    assert sorted(number for number, _ in starts) == list(range(10, 18))
    assert [at for _, at in starts] == pytest.approx([0, 0, 0, 1, 1, 1, 2, 2])


def test_an_open_loop_sends_whatever_is_in_flight() -> None:
    load = OpenLoop(rate=10.0, num_requests=20, num_warmups=0, seed=3)
    starts, peak = starts_of(load, lasts_s=100.0)
    assert peak == 20
    assert [number for number, _ in starts] == list(range(10, 30))
    assert [at for _, at in starts] == pytest.approx(arrivals(10.0, 20, seed=3))


def test_arrivals_are_the_same_for_a_seed_and_others_for_another() -> None:
    assert arrivals(4.0, 100, seed=1) == arrivals(4.0, 100, seed=1)
    assert arrivals(4.0, 100, seed=1) != arrivals(4.0, 100, seed=2)


def test_arrivals_start_at_once_and_never_go_back() -> None:
    times = arrivals(4.0, 100, seed=1)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert arrivals(4.0, 0, seed=1) == []


def test_pauses_between_arrivals_are_exponential() -> None:
    times = arrivals(4.0, 20_001, seed=0)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert sum(pauses) / len(pauses) == pytest.approx(0.25, rel=0.02)
    longer = sum(pause > 0.25 for pause in pauses) / len(pauses)
    assert longer == pytest.approx(0.3679, abs=0.01)
