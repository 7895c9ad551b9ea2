"""How much of a window each stage computes: unions, overlaps, steps, kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench.profiles import EPOCH_NS, Event, content, profile_of_events, run, span

from omnistage.bench.profile.figures import Profile, Recorded, profile_of
from omnistage.bench.profile.intervals import Intervals, TimeWindow, shares, union
from omnistage.bench.profile.traces import ProfileTrace, TraceError

THREAD: Event = {"pid": 4321, "tid": 99}
GPU_STEP, CPU_STEP = "gpu_user_annotation", "user_annotation"
RUNS = st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 8)), max_size=12)


def profile(**events: list[Event]) -> Profile:
    return profile_of_events(events)


def test_kernels_that_overlap_on_streams_count_once() -> None:
    other: Event = {"tid": 8}
    own = [
        span(0.0, 100.0),
        run("a", 10.0, 20.0),
        run("b", 20.0, 20.0, **other),
        run("copy", 40.0, 10.0, "gpu_memcpy"),
        run("zero", 60.0, 5.0, "gpu_memset"),
        run("execute_x", 0.0, 100.0, GPU_STEP),
        run("aten::mm", 0.0, 100.0, "cpu_op", **THREAD),
    ]
    found = profile(one=own)
    assert found.runs == "kernels"
    assert found.window_s == pytest.approx(100e-6)
    (stage,) = found.stages
    assert stage.busy == pytest.approx(0.45)
    assert stage.runs_per_s == pytest.approx(4 / 100e-6)


def test_the_window_is_what_all_traces_have() -> None:
    first = [span(0.0, 100.0), run("a", 0.0, 60.0)]
    second = [span(50.0, 150.0), run("b", 90.0, 60.0)]
    found = profile(first=first, second=second)
    assert found.window_s == pytest.approx(50e-6)
    assert [one.busy for one in found.stages] == pytest.approx([0.2, 0.2])
    # What began before the window is no run of it, but computes in it.
    assert [one.runs_per_s for one in found.stages] == pytest.approx([0, 1 / 50e-6])


def test_traces_without_a_common_time_are_refused() -> None:
    with pytest.raises(
        TraceError, match=r"no time in common: first 0\.000 to 0\.001 s, second 0\.002"
    ):
        profile(first=[span(0.0, 1e3)], second=[span(2e3, 3e3)])
    with pytest.raises(TraceError, match="the trace of stage first is empty"):
        profile(first=[], second=[span(2e3, 3e3)])


def test_shares_are_of_exactly_the_stages_that_compute_together() -> None:
    found = profile(
        thinker=[span(0.0, 100.0), run("a", 10.0, 40.0)],
        talker=[span(0.0, 100.0), run("b", 30.0, 30.0)],
        code2wav=[span(0.0, 100.0), run("c", 40.0, 5.0), run("c", 90.0, 5.0)],
    )
    sets = {one.stages: one.share for one in found.shares}
    assert sets == {
        (): pytest.approx(0.45),
        ("thinker",): pytest.approx(0.2),
        ("talker",): pytest.approx(0.1),
        ("code2wav",): pytest.approx(0.05),
        ("thinker", "talker"): pytest.approx(0.15),
        ("thinker", "talker", "code2wav"): pytest.approx(0.05),
    }
    assert [found.share_of(num) for num in range(4)] == pytest.approx([0.45, 0.35, 0.15, 0.05])
    assert [one.beside for one in found.stages] == pytest.approx([0.2, 0.2, 0.05])


@settings(deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=4))
def test_shares_and_unions_are_those_of_single_moments(stages: list[list[tuple[int, int]]]) -> None:
    window = TimeWindow(0.0, 25.0)
    busy = []
    for runs in stages:
        starts = np.array([start for start, _ in runs], float)
        ends = np.array([start + length for start, length in runs], float)
        busy.append(union(window.clipped(starts, ends)))
    expected: dict[tuple[int, ...], float] = {}
    for moment in range(25):
        running = tuple(
            number
            for number, runs in enumerate(stages)
            if any(start <= moment < start + length for start, length in runs)
        )
        expected[running] = expected.get(running, 0.0) + 1 / 25
    assert shares(busy, window) == pytest.approx(expected)
    for number, own in enumerate(busy):
        assert (own.starts[1:] > own.ends[:-1]).all()
        share = sum(value for running, value in expected.items() if number in running)
        assert own.total / 25 == pytest.approx(share)


def test_a_union_of_nothing_is_nothing() -> None:
    nothing = Intervals(np.zeros(0), np.zeros(0))
    assert union(nothing).total == 0


def test_steps_are_those_on_the_gpu_of_the_row_that_has_most() -> None:
    steps = [run("execute_context_0(0)", 10.0 * n, 6.0, GPU_STEP) for n in range(5)]
    side = [run("execute_context_0(0)", 10.0 * n, 1.0, GPU_STEP, tid=8) for n in range(2)]
    launched = [run("execute_context_0(0)", n, 0.5, CPU_STEP, **THREAD) for n in range(9)]
    other = [run("forward", 1.0, 1.0, GPU_STEP)]
    launches = [run("cudaGraphLaunch", n, 0.1, "cuda_runtime", **THREAD) for n in range(8)]
    own = [span(0.0, 100.0), run("a", 1.0, 1.0), *steps, *side, *launched, *other, *launches]
    stage = profile(one=own).stages[0]
    assert stage.steps is not None
    assert stage.steps.number == 5
    lengths = (stage.steps.length_s, stage.steps.period_s, stage.steps.gap_s)
    assert lengths == pytest.approx((6e-6, 10e-6, 4e-6))
    assert stage.graphs_per_s == pytest.approx(8 / 100e-6)


def test_without_steps_or_with_one_the_gap_is_not_known() -> None:
    assert profile(one=[span(0.0, 9.0), run("a", 1.0, 1.0)]).stages[0].steps is None
    own = [span(0.0, 9.0), run("decode_4", 1.0, 3.0, CPU_STEP, **THREAD)]
    steps = profile(one=own).stages[0].steps
    assert steps is not None
    assert (steps.number, steps.period_s, steps.gap_s) == (1, None, None)


def test_the_kernels_of_most_time_come_first() -> None:
    many = [run(f"k{number}", 10.0 * number, number + 1.0) for number in range(20)]
    own = [span(0.0, 1000.0), *many, run("k0", 300.0, 2.0), run("k0", 310.0, 90.0)]
    kernels = profile(one=own).stages[0].kernels
    assert [one.name for one in kernels] == ["k0", *(f"k{n}" for n in range(19, 8, -1))]
    first = kernels[0]
    assert first.calls == 3
    assert (first.total_s, first.median_s) == pytest.approx((93e-6, 2e-6))


def test_without_a_gpu_operators_count() -> None:
    outer = run("aten::linear", 0.0, 40.0, "cpu_op", **THREAD)
    inner = run("aten::addmm", 10.0, 20.0, "cpu_op", **THREAD)
    found = profile(one=[span(0.0, 80.0), outer, inner], two=[span(0.0, 80.0), outer])
    assert found.runs == "operators"
    assert [one.busy for one in found.stages] == pytest.approx([0.5, 0.5])
    assert [one.name for one in found.stages[0].kernels] == ["aten::linear", "aten::addmm"]


def test_a_stage_without_kernels_beside_one_with_some_is_idle() -> None:
    operator = run("aten::linear", 0.0, 40.0, "cpu_op", **THREAD)
    found = profile(one=[span(0.0, 80.0), operator], two=[span(0.0, 80.0), run("a", 0.0, 8.0)])
    assert [one.busy for one in found.stages] == pytest.approx([0, 0.1])
    assert found.stages[0].kernels == ()


def test_a_trace_that_does_not_say_when_it_recorded_has_its_events_time() -> None:
    found = profile(one=[run("a", 10.0, 5.0), run("b", 25.0, 5.0)], two=[span(0.0, 90.0)])
    assert found.window_s == pytest.approx(20e-6)
    assert found.stages[0].busy == pytest.approx(0.5)


def test_processes_of_one_stage_compute_together() -> None:
    stage = Recorded("thinker")
    for start in (0.0, 30.0):
        steps = [run("execute_a", start + 10 * n, 5.0, GPU_STEP) for n in range(3)]
        own = [span(start, start + 100.0), run("a", start + 35.0, 20.0), *steps]
        stage.read(ProfileTrace(content(own), EPOCH_NS, "rank"))
    found = profile_of([stage], "a.json.gz")
    assert found.window_s == pytest.approx(70e-6)  # from 30 to 100
    assert found.stages[0].busy == pytest.approx(40 / 70)  # 35 to 55, and 65 to 85
    assert found.stages[0].steps is not None
    assert found.stages[0].steps.number == 3
