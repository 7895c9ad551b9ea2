"""A stage with two stages upstream: what it answers, however what they say is interleaved."""

import asyncio
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stages.joined_sources import SOURCES, Play, Say
from support.waiting import pass_over

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stages.messages.to_gateway import (
    ABOUT_ITSELF,
    Failed,
    Status,
    TextDelta,
)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    text = payloads(Payload.TEXT)
    with pytest.MonkeyPatch.context() as patch:
        for name in "abcd":
            takes = () if name == "a" else (text,)
            kind = Kind(
                "support.stages.worker_stage:JoiningStage",
                frozenset({"text"}),
                makes=text,
                takes=takes,
                joins=name == "d",
            )
            patch.setitem(KINDS, f"test.{name}", kind)
        patch.setattr("omnistage.stages.worker.reports.STATUS_INTERVAL_S", 0.002)
        patch.setattr("omnistage.stages.worker.stage_worker.visible_gpus", list)
        play = Play(tmp_path)
        yield play
        play.close()


def test_it_stops_at_the_moment_at_which_its_counters_change(play: Play) -> None:
    play.loop.call_soon(play.worker._work.changed.set)
    play.loop.call_soon(play.worker._stopping.set)
    play.loop.run_until_complete(asyncio.wait({play.running}, timeout=600))
    assert play.running.done()


def test_its_loop_goes_on_while_the_gateway_takes_no_counters(play: Play) -> None:
    def give_up(*signalled: object) -> None:
        raise AssertionError("the loop does not turn")

    async def run() -> None:
        while play.worker._outputs.credit(ABOUT_ITSELF):
            play.worker._work.changed.set()
            await asyncio.sleep(0)
        play.worker._work.changed.set()
        await asyncio.sleep(0.05)
        told = len(play.of_itself(Status))  # with room for more
        await play.until(lambda: len(play.of_itself(Status)) > told)

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        play.loop.run_until_complete(run())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_it_answers_with_what_both_wrote(play: Play) -> None:
    async def run() -> None:
        for name, source in play.sources.items():
            source.open("both")
            source.say("both", f"from {name}", last=True)
        await play.until(lambda: bool(play.of("both")))
        assert play.of("both") == [TextDelta({"b": "from b", "c": "from c"})]
        await play.until(play.is_idle)

    play.loop.run_until_complete(run())


def test_what_one_never_announces_is_overdue_and_named(play: Play) -> None:
    async def run() -> None:
        play.sources["c"].open("late")
        play.sources["c"].say("late", "early words", last=True)
        await play.until(lambda: bool(play.of("late")))
        [failed] = play.of("late")
        assert isinstance(failed, Failed)
        assert (failed.status, failed.code) == (504, "stage_timeout")
        assert failed.message.startswith("Edge b -> d: ")
        await play.until(play.is_idle)

    play.loop.run_until_complete(run())


def test_a_pause_of_the_stage_is_taken_from_what_its_watches_count(play: Play) -> None:
    async def run() -> None:
        await play.until(lambda: bool(play.of_itself(Status)))  # it serves
        pass_over(play.loop, 1000)
        await play.until(lambda: play.worker._ports.standstills.total_s > 900)

    play.loop.run_until_complete(run())


ANSWERS = st.one_of(st.lists(st.text("xyz", max_size=3), min_size=1, max_size=4), st.just([None]))
FATES = st.sampled_from(["answered"] * 3 + ["cancelled", "source dies"])
SCHEDULES = st.lists(st.tuples(ANSWERS, ANSWERS, FATES), min_size=1, max_size=4)


@given(SCHEDULES, st.integers(0, 1 << 32))
@settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_order_of_any_requests_gives_each_its_own_answer(
    play: Play, requests: list[tuple[list[Say], list[Say], str]], seed: int
) -> None:
    """Both in any order, cancels and a source's death at any point; nothing is left behind."""
    order = Random(seed)
    names = [next(play.ids) for _ in requests]
    asked = dict(zip(names, requests, strict=True))
    to_say = {
        (name, source): ["open", *said]
        for name, (*both, _) in asked.items()
        for source, said in zip(SOURCES, both, strict=True)
    }
    ends = {name: order.randint(0, 8) for name, (*_, fate) in asked.items() if fate != "answered"}
    dying = {name for name, (*_, fate) in asked.items() if fate == "source dies"}
    has_ended: set[str] = set()
    sent: set[tuple[str, str]] = set()

    def end(name: str) -> None:
        has_ended.add(name)
        play.cancel(name)

    async def run() -> None:
        for step in count():
            for name, at in ends.items():
                if at == step and name not in has_ended:
                    if (
                        name in dying
                    ):  # every request of the dead stage ends, as the gateway does it
                        play.sources["b"].die()
                        for one in names:
                            if not play.of(one):
                                end(one)
                    else:
                        end(name)
            left = [key for key, said in to_say.items() if said and key[0] not in has_ended]
            if not left:
                break
            name, source = order.choice(left)
            said = to_say[name, source].pop(0)
            if (name, source) not in sent:
                sent.add((name, source))
                play.sources[source].open(name)
            else:
                play.sources[source].say(name, said, last=not to_say[name, source])
            for _ in range(order.randint(0, 3)):
                await asyncio.sleep(0)
        for name in names:
            if name not in has_ended:
                await play.until(lambda name=name: bool(play.of(name)))  # type: ignore[misc]
        await play.until(play.is_idle)

    play.loop.run_until_complete(run())
    for name in names:
        answer = play.of(name)
        if name not in has_ended or answer:
            b, c, _ = asked[name]
            wrote = {"b": "".join(filter(None, b)), "c": "".join(filter(None, c))}
            assert answer == [TextDelta(wrote)]
    play.got = [chunk for chunk in play.got if chunk.request_id == ABOUT_ITSELF][-3:]
