"""The arithmetic of `make gpu-sharing`, its table, and its loads beside each other on a CPU."""

import ctypes
import math
import multiprocessing
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gpu_sharing import (
    CREDIT,
    Failed,
    Job,
    Pace,
    Ran,
    Report,
    aborting,
    compared,
    do_job,
    host,
    received,
)
from support import gpu_loads, green_contexts
from support.gpu_loads import (
    CHUNK,
    CHUNK_FRAMES,
    CODE2WAV,
    FIRST,
    LOADS,
    NUM_SETS,
    STEP,
    TALKER,
    Plan,
    StandIn,
    Talker,
    batches,
    bytes_read,
    experts_read,
    num_first,
    relative_rms,
)

from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config

REAL_LAYERS = 20
JOB, ALONE = Job("", 2, 0.5), Job("", 2, 0.2, is_alone=True)


def ran(load: str, count: int, error: float = 0.0, equal: float = 1.0) -> Ran:
    kinds = {STEP: [4.0] * count} if load == TALKER else {CHUNK: [20.0] * count, FIRST: [2.0]}
    return Ran(load, kinds, 2.0, equal, error)


def test_many_rows_choose_nearly_all_experts_and_one_row_its_own() -> None:
    assert experts_read(128, 6, 1) == 6
    assert experts_read(128, 6, 8) == 41
    assert experts_read(128, 6, 64) == 122


def test_the_stand_in_reads_the_bytes_of_the_real_layers(tmp_path: Path) -> None:
    real_config().save_pretrained(tmp_path)
    expert = 3 * 1024 * 384 * 2
    rest = 2 * (1024 * (16 + 4) * 128 + 16 * 128 * 1024 + 3 * 1024 * 768)
    for rows, experts in ((1, 6), (64, 122)):
        assert bytes_read(str(tmp_path), rows) == REAL_LAYERS * (experts * expert + rest)


@pytest.mark.parametrize("rows", [1, 3, 8, 64])
def test_the_stand_in_of_real_size_takes_any_number_of_rows(rows: int) -> None:
    with torch.device("meta"):
        layers = StandIn(real_config().talker_config.text_config)
        hidden = torch.empty(rows, 1024)
    assert layers(hidden).shape == (rows, 1024)


def test_decodes_have_at_most_as_many_frames_as_the_engine_takes() -> None:
    assert batches(40, 25) == [slice(0, 16), slice(16, 32), slice(32, 40)]
    assert batches(8, 1) == [slice(0, 8)]
    assert [num_first(level) for level in (1, 8, 64)] == [1, 1, 8]


def test_answers_are_compared_with_those_to_the_same_inputs() -> None:
    codes = [np.full((2, 3), number) for number in range(NUM_SETS)]
    other = codes[1].copy()
    other[0, 2] = 7
    answers = [(STEP, NUM_SETS, codes[0]), (STEP, NUM_SETS + 1, other)]
    assert compared(answers, {STEP: codes}) == (0.75, 0.0)
    samples = [np.array([3, -4], np.int16)] * NUM_SETS
    off = np.array([3, -3], np.int16)
    equal, error = compared([(CHUNK, 0, off), (CHUNK, 1, samples[1])], {CHUNK: samples})
    assert equal == 0.75
    assert error == pytest.approx(0.2)


def test_an_answer_that_is_no_number_is_infinitely_far_off() -> None:
    assert relative_rms(np.array([math.nan]), np.array([1.0])) == math.inf


def test_rates_are_told_over_those_alone_and_the_most_steps_win() -> None:
    report = Report(frame_s=0.08)
    report.line("talker alone", 8, [ran(TALKER, 400)], is_alone=True)
    report.line("code2wav alone", 8, [ran(CODE2WAV, 100)], is_alone=True)
    slow = report.line("slow", 8, [ran(TALKER, 200), ran(CODE2WAV, 8)]).split()
    fast = report.line("fast", 8, [ran(TALKER, 300), ran(CODE2WAV, 12)]).split()
    assert slow[:2] == ["slow", "8"]
    assert slow[2:6] == ["4.00", "4.00", "20.00", "2.00"]
    assert slow[6:8] == ["100.0", "0.50"]
    assert slow[8:10] == [f"{4 * 8 * 25 * 0.08:.1f}", "0.08"]
    assert slow[10:] == ["all", "0.0e+00"] * 2
    assert fast[6:8] == ["150.0", "0.75"]
    assert report.ranking() == ["8 streams: fast 150.0, slow 100.0"]
    assert report.is_right


@pytest.mark.parametrize("wrong", [ran(CODE2WAV, 12, error=0.2), ran(CODE2WAV, 12, error=math.nan)])
def test_a_way_with_wrong_samples_is_no_candidate(wrong: Ran) -> None:
    report = Report(frame_s=0.08)
    assert report.line("way", 1, [ran(TALKER, 300), wrong]).endswith("WRONG")
    assert report.ranking() == []
    assert not report.is_right


def test_a_single_frame_that_differs_is_told() -> None:
    runs = [ran(TALKER, 300, equal=0.9999), ran(CODE2WAV, 12)]
    assert Report(frame_s=0.08).line("way", 1, runs).split()[10:12] == ["99.99%", "0.0e+00"]


def test_a_way_with_other_codes_is_no_candidate() -> None:
    report = Report(frame_s=0.08)
    runs = [ran(TALKER, 300, equal=0.3), ran(CODE2WAV, 12)]
    assert report.line("way", 1, runs).endswith("WRONG")
    assert report.ranking() == []


def test_the_talker_waits_for_code2wav_two_chunks_ahead() -> None:
    pace = Pace(threading)
    talker = threading.Thread(target=lambda: [pace.has_room(number) for number in (0, 25, 50)])
    talker.start()
    talker.join(0.2)
    assert talker.is_alive()
    pace.decoded()
    talker.join(10)
    assert not talker.is_alive()


def test_a_load_that_fails_does_not_let_the_other_wait() -> None:
    pace = Pace(threading)
    raised: list[BaseException] = []

    def other() -> None:
        try:
            pace.begin()
        except threading.BrokenBarrierError as error:
            raised.append(error)

    waiting = threading.Thread(target=other)
    waiting.start()
    with pytest.raises(ZeroDivisionError):
        aborting(pace, lambda: 1 // 0)
    waiting.join(10)
    assert len(raised) == 1


def test_a_process_that_fails_says_why() -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.send(Failed("no memory"))
    with pytest.raises(RuntimeError, match="no memory"):
        received(ours)
    theirs.close()
    with pytest.raises(RuntimeError, match="has ended"):
        received(ours)
    ours.close()


def test_a_split_is_refused_if_the_driver_tells_another_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_cuda(monkeypatch, told=16)
    with pytest.raises(RuntimeError, match="16 of 132 multiprocessors"):
        green_contexts.Driver().split(32)


def test_a_split_has_the_part_and_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, told=132)
    part, rest = green_contexts.Driver().split(30)
    assert (part.num_sms, rest.num_sms) == (32, 100)
    assert part.stream != rest.stream


def test_an_error_of_the_driver_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, told=132)
    with pytest.raises(RuntimeError, match="cuGreenCtxDestroy: CUDA_ERROR_INVALID_VALUE"):
        green_contexts.Driver().call("cuGreenCtxDestroy")


def fake_cuda(monkeypatch: pytest.MonkeyPatch, told: int) -> None:
    """A driver of 132 multiprocessors, in groups of 8, that tells so many."""
    numbers = iter(range(1, 100))

    def write(resource: Any, count: int) -> int:
        ctypes.memset(ctypes.addressof(resource), 0, 144)
        ctypes.memmove(ctypes.addressof(resource) + 96, bytes(ctypes.c_uint(count)), 4)
        return 0

    def split(part: Any, _: Any, whole: Any, rest: Any, __: Any, wanted: Any) -> int:
        count = -(-wanted.value // 8) * 8
        write(part, count)
        return write(rest, int.from_bytes(whole.raw[96:100], "little") - count)

    def made(handle: Any, *_: Any) -> int:
        handle._obj.value = next(numbers)
        return 0

    def name_of(_: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_INVALID_VALUE"
        return 0

    library = SimpleNamespace(
        cuDeviceGet=lambda device, number: 0,
        cuDeviceGetDevResource=lambda device, whole, kind: write(whole, told),
        cuDevSmResourceSplitByCount=split,
        cuDevResourceGenerateDesc=made,
        cuGreenCtxCreate=made,
        cuGreenCtxStreamCreate=made,
        cuGreenCtxDestroy=lambda: 1,
        cuGetErrorName=name_of,
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle: ("stream", handle))


def test_threads_give_the_answers_of_the_loads_alone(tiny_checkpoint: Path, tmp_path: Path) -> None:
    plan = Plan(str(tiny_checkpoint), "cpu", "float32", tmp_path)
    loads = [make(plan) for make in LOADS.values()]
    with pytest.raises(FileNotFoundError):
        do_job(JOB, loads, None, plan)  # nothing to compare with yet
    for load in loads:
        do_job(ALONE, [load], None, plan)
    runs = do_job(JOB, loads, None, plan)
    assert [run.load for run in runs] == [TALKER, CODE2WAV]
    assert all(run.equal == 1.0 and run.error == 0.0 for run in runs)
    assert all(run.rate > 0 for run in runs)


def test_a_recorded_step_reads_each_steps_inputs(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker = Talker(Plan(str(tiny_checkpoint), "cpu", "float32", tmp_path))
    talker.prepare(2, None)
    expected = talker.answers()

    def recorded(compute: Callable[[], torch.Tensor], _: object) -> tuple[Any, torch.Tensor]:
        output = compute()
        return SimpleNamespace(replay=lambda: output.copy_(compute())), output

    monkeypatch.setattr(gpu_loads, "record", recorded)
    talker.prepare(2, "a stream")
    for kind, answers in talker.answers().items():
        assert np.array_equal(answers, expected[kind])
    assert talker.hidden_error(NUM_SETS - 1, expected) == 0.0
    assert talker.hidden_error(0, expected) > 0.0


def test_processes_are_paced_by_the_talker_and_say_what_fails(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    plan, pace = Plan(str(tiny_checkpoint), "cpu", "float32", tmp_path), Pace(threading)
    with ExitStack() as stack:
        asked = []
        for name in LOADS:
            ours, theirs = multiprocessing.Pipe()
            stack.callback(theirs.close)
            stack.callback(ours.close)
            hosting = threading.Thread(target=host, args=(theirs, plan, [name], pace))
            hosting.start()
            stack.callback(hosting.join)
            stack.callback(ours.send, None)
            assert received(ours) is None
            asked.append(ours)

        def answers(job: Job) -> list[Ran]:
            pace.reset()
            for connection in asked:
                connection.send(job)
            return [run for connection in asked for run in received(connection)]

        with pytest.raises(RuntimeError, match="No such file"):
            answers(JOB)
        with pytest.raises(RuntimeError, match=f"{CODE2WAV}_2"):
            received(asked[1])
        answers(ALONE)
        talker, code2wav = answers(JOB)
    assert talker.equal == code2wav.equal == 1.0
    chunks, steps = len(code2wav.ms[CHUNK]), len(talker.ms[STEP])
    assert chunks * CHUNK_FRAMES <= steps <= (chunks + CREDIT + 1) * CHUNK_FRAMES
