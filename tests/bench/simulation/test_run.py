"""Simulated loads: by hand for one request, by queueing theory for many."""

import pytest

from omnistage.bench.load import ClosedLoop, OpenLoop
from omnistage.bench.simulation.model import (
    Answers,
    Cell,
    Curve,
    Decoder,
    Edge,
    Gateway,
    Length,
    Writer,
)
from omnistage.bench.simulation.run import REFUSED, simulate

FREE = Curve(((1, 0.0),))
HALF = Curve(((1, 0.5),))  # of a device: two stages on it do not slow each other


def flat(seconds: float) -> Curve:
    return Curve(((1, seconds),))


def writer(name: str, step_s: float, prompt_s: float = 0.0, **more: object) -> Writer:
    given = {"replicas": (("gpu",),), "seats": 64} | more
    return Writer(name, step=flat(step_s), prompt=flat(prompt_s), **given)  # type: ignore[arg-type]


def answers(tokens: int, prompt: int = 10, ratio: float = 1.0, spread: float = 0.0) -> Answers:
    return Answers(Length(prompt), Length(tokens, spread), ratio, frame_s=0.1)


SPEECH = Cell(
    (writer("text", 1.0, 2.0, is_text=True), writer("frames", 0.25, 0.5, replicas=(("other",),))),
    Decoder("sound", (("third",),), {1: flat(0.125)}),
    Edge((2, 4)),
    Gateway(before_s=0.0625, after_s=0.03125),
    HALF,
)


def test_the_times_of_one_request_are_those_by_hand() -> None:
    (sample,) = simulate(SPEECH, answers(4, ratio=2.0), ClosedLoop(1, 1, 0)).level.samples
    begun, after = 0.0625, 0.03125
    # Text: the prompt's step writes the first token.
    texts = [begun + 3.0 + step + after for step in range(4)]
    assert sample.text_arrivals_s == pytest.approx(texts)
    # Frames: each waits for a token of text until the last one; then they follow each other.
    frames = [begun + 3.75, begun + 4.25, begun + 5.25, begun + 6.25]
    frames += [frames[-1] + 0.25 * more for more in range(1, 5)]
    heard = [frames[1] + 0.125 + after, frames[5] + 0.125 + after, frames[7] + 0.125 + after]
    assert [one.arrival_s for one in sample.packets] == pytest.approx(heard)
    assert [one.duration_s for one in sample.packets] == pytest.approx([0.2, 0.4, 0.2])
    assert sample.e2e_s == pytest.approx(heard[-1])
    assert sample.playback.num_stalls == 2


def test_an_output_that_leaves_late_needs_a_step_more() -> None:
    ends = []
    for lag in (0, 1):
        cell = Cell(
            (writer("frames", 0.25, lag=lag),), Decoder("d", (("x",),), {1: FREE}), Edge((1,))
        )
        (sample,) = simulate(cell, answers(3), ClosedLoop(1, 1, 0)).level.samples
        ends.append(sample.e2e_s)
        assert len(sample.packets) == 3
    assert ends == pytest.approx([0.75, 1.0])


def test_requests_of_one_step_share_its_time() -> None:
    step = Curve(((1, 1.0), (3, 2.0)))
    cell = Cell((Writer("text", (("gpu",),), 64, step, FREE, is_text=True),))
    level = simulate(cell, answers(5, prompt=1), ClosedLoop(3, 3, 0)).level
    # The first one begins alone, and the others have a step without it at the end.
    assert [sample.e2e_s for sample in level.samples] == [1 + 4 * 2, 1 + 4 * 2 + 1.5, 10.5]


def test_a_prompt_reads_weights_that_rows_of_its_step_read_anyway() -> None:
    spec = Writer("text", (("gpu",),), 64, Curve(((1, 1.0), (5, 3.0))), flat(0.25))
    assert spec.time(2, 0) == 1.5
    assert spec.time(0, 3) == 2.0 + 0.25
    assert spec.time(2, 2) == 2.5 + 0.25
    assert spec.time(2, 1000) == spec.time(5, 1000) == 3.0 + 0.25
    assert spec.time(7, 1000) == 4.0 + 0.25  # more rows than were measured


def test_a_prompt_longer_than_a_step_is_read_in_several() -> None:
    cell = Cell((writer("text", 0.0, 1.0, is_text=True, max_tokens=4),))
    (sample,) = simulate(cell, answers(2, prompt=10), ClosedLoop(1, 1, 0)).level.samples
    assert sample.text_arrivals_s == pytest.approx([3.0, 3.0])


def test_without_a_seat_a_request_waits_for_one() -> None:
    cell = Cell((writer("text", 1.0, is_text=True, seats=2),))
    level = simulate(cell, answers(3), ClosedLoop(4, 4, 0)).level
    assert sorted(sample.e2e_s for sample in level.samples) == [3.0, 4.0, 6.0, 7.0]


def test_a_writer_stops_where_its_credit_ends() -> None:
    """It holds its only seat until its chunks are decoded, so the next request begins late."""
    decoder = Decoder("d", (("slow",),), {1: flat(1.0)}, batch_frames=2)
    ends = {}
    for credit in (2, 100):
        cell = Cell((writer("frames", 0.01, seats=1),), decoder, Edge((1,), credit))
        level = simulate(cell, answers(10), ClosedLoop(2, 2, 0)).level
        ends[credit] = level.duration_s
    assert ends == pytest.approx({2: 19.0, 100: 11.0}, abs=0.2)


def test_pieces_of_one_length_are_decoded_together_up_to_the_frames_of_a_batch() -> None:
    ends = {}
    for batch_frames in (4, 8):
        decoder = Decoder("d", (("slow",),), {1: flat(1.0)}, batch_frames)
        cell = Cell((writer("frames", 0.0),), decoder, Edge((4,)))
        level = simulate(cell, answers(4), ClosedLoop(4, 4, 0)).level
        ends[batch_frames] = max(sample.e2e_s for sample in level.samples)
    # The first piece that is there goes alone; the others wait for its end.
    assert ends == pytest.approx({4: 4.0, 8: 3.0})


def test_two_replicas_do_twice_as_much() -> None:
    rates = []
    for names in ((("a",),), (("a",), ("b",))):
        cell = Cell((writer("text", 1.0, is_text=True, seats=1, replicas=names),))
        rates.append(simulate(cell, answers(2), ClosedLoop(8, 40, 0)).level.rates.requests)
    assert rates[1] == pytest.approx(2 * rates[0])


def test_a_step_over_two_devices_ends_with_the_slower_of_them() -> None:
    """Another stage has one of them, too: beside it a step takes twice as long."""
    whole = Curve(((1, 1.0),))
    ends = []
    for names in (("a", "b"), ("b", "c")):
        cell = Cell(
            (
                writer("text", 1.0, is_text=True, replicas=(names,)),
                writer("frames", 8.0, replicas=(("a",),)),
            ),
            share=whole,
        )
        outcome = simulate(cell, answers(2), ClosedLoop(1, 1, 0))
        (sample,) = outcome.level.samples
        ends.append(sample.text_arrivals_s)
        assert set(outcome.devices) == {"a", *names}
    assert ends == [pytest.approx((1.0, 3.0)), pytest.approx((1.0, 2.0))]


def test_more_requests_than_are_admitted_are_refused() -> None:
    cell = Cell((writer("text", 1.0, is_text=True),), gateway=Gateway(max_requests=3))
    level = simulate(cell, answers(100), OpenLoop(1000.0, 10, 0, 1)).level
    assert [sample.error for sample in level.samples].count(REFUSED) == 7
    assert level.num_failed == 7
    assert len(level.answered) == 3


def test_the_gateway_s_core_writes_one_event_after_the_other() -> None:
    cell = Cell((writer("text", 0.5, is_text=True),), gateway=Gateway(event_s=0.25))
    outcome = simulate(cell, answers(4), ClosedLoop(4, 4, 0))
    # Four streams write eight events a second; the core writes four, after the first one alone.
    assert outcome.level.duration_s == pytest.approx(1.0 + 19 * 0.25)
    assert outcome.gateway == pytest.approx(20 * 0.25 / outcome.level.duration_s)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_wait_for_one_server_is_that_of_theory(load: float) -> None:
    """M/D/1: arrivals of a Poisson process, and the same time for each. Pollaczek and Khinchin."""
    cell = Cell((writer("text", 1.0, is_text=True, seats=1),))
    level = simulate(cell, answers(1), OpenLoop(load, 8_000, 500, 3)).level
    mean_wait_s = load / (2 * (1 - load))
    assert level.metrics["e2e_s"].mean - 1.0 == pytest.approx(mean_wait_s, rel=0.1)


def test_throughput_follows_arrivals_until_a_stage_is_full() -> None:
    cell = Cell((writer("text", 0.01, is_text=True, seats=4),))
    asked = answers(50)  # two seconds each with four beside each other: 8 a second at most
    for rate, made in ((4.0, 4.0), (16.0, 8.0)):
        level = simulate(cell, asked, OpenLoop(rate, 2000, 0, 2)).level
        assert level.rates.requests == pytest.approx(made, rel=0.07)


def test_a_load_beyond_what_is_possible_makes_listeners_wait() -> None:
    decoder = Decoder("d", (("gpu",),), {5: flat(0.2)}, batch_frames=5)  # 2.5 s of sound a second
    cell = Cell((writer("frames", 0.05, replicas=(("other",),)),), decoder, Edge((5,)))
    underruns = [
        simulate(cell, answers(50), ClosedLoop(streams, 4 * streams, 0)).level.num_underruns
        for streams in (1, 8)
    ]
    assert underruns[0] == 0
    assert underruns[1] > 16


def test_the_warm_up_does_not_count_and_the_same_seed_gives_the_same_figures() -> None:
    asked = answers(20, spread=0.5)
    first, second = (simulate(SPEECH, asked, ClosedLoop(3, 9, 6)) for _ in range(2))
    assert first == second
    assert [sample.number for sample in first.level.samples] == list(range(6, 15))
    assert min(sample.start_s for sample in first.level.samples) == 0.0
    assert all(0 < share <= 1 for share in (*first.devices.values(), *first.stages.values()))
