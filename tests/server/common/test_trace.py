"""Stamps of a request on the clock of all processes, and the spans between them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from omnistage.server.common.trace import (
    ENDED,
    FINISHED,
    FIRST_AUDIO,
    GATEWAY,
    RECEIVED,
    Timeline,
    Trace,
    TraceStep,
    current_trace,
    following,
    named_trace,
)


def timeline_of(*marks: tuple[str, str, int]) -> Timeline:
    timeline = Timeline()
    for stage, event, at_ns in marks:
        timeline.mark(stage, event, at_ns)
    return timeline


SPOKEN = timeline_of(
    ("code2wav", "first_samples", 70),
    (GATEWAY, RECEIVED, 10),
    (GATEWAY, "sent", 20),
    ("thinker", RECEIVED, 25),
    ("talker", RECEIVED, 30),
    ("thinker", "first_token", 40),
    (GATEWAY, FIRST_AUDIO, 80),
    ("thinker", FINISHED, 75),
    (GATEWAY, ENDED, 100),
)


def test_the_way_is_told_in_the_order_of_time_from_the_first() -> None:
    timeline = timeline_of(
        ("thinker", "finished", 4_000_000),
        ("thinker", "received", 3_500_000),
        ("gateway", "received", 1_000_000),
        ("thinker", "received", 9_000_000),
    )
    assert timeline.to_list() == [
        {"stage": "gateway", "event": "received", "ms": 0.0},
        {"stage": "thinker", "event": "received", "ms": 2.5},
    ]


def test_steps_lie_end_to_end_from_the_receipt_to_what_came_last() -> None:
    steps = SPOKEN.steps
    assert steps[0] == TraceStep(GATEWAY, "sent", 10, 20)
    assert steps[-1] == TraceStep(GATEWAY, FIRST_AUDIO, 70, 80)
    assert [step.start_ns for step in steps[1:]] == [step.end_ns for step in steps[:-1]]
    assert FINISHED not in {step.event for step in steps}


def test_a_stage_lasts_from_its_first_step_to_its_last_stamp() -> None:
    assert SPOKEN.stages == {"thinker": (20, 75), "talker": (25, 30), "code2wav": (40, 70)}


def test_times_are_counted_from_the_receipt() -> None:
    assert SPOKEN.seconds_to(FIRST_AUDIO) == 70e-9
    assert SPOKEN.seconds_to("first_text") is None
    assert timeline_of((GATEWAY, ENDED, 5)).seconds_to(ENDED) is None


async def test_every_task_that_a_request_starts_knows_it_and_no_other_does() -> None:
    async def seen() -> Trace | None:
        await asyncio.sleep(0)
        return named_trace()

    first, second = Trace("a"), Trace("b")
    with following(first):
        inner = asyncio.create_task(seen())
        with following(second):
            other = asyncio.create_task(seen())
        assert current_trace() is first
    assert await inner is first
    assert await other is second
    assert await seen() is None
    with following(first), ThreadPoolExecutor(1) as threads:
        assert threads.submit(copy_context().run, current_trace).result() is first


def test_outside_of_a_request_a_trace_is_nobodys() -> None:
    assert current_trace() is not current_trace()
    with following(Trace()):
        assert named_trace() is None
