"""The arithmetic of `make vocoder-engine`, and its figures, of engines that are told by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from vocoder_engine import (
    OURS,
    STEADY_FRAMES,
    VLLM,
    Case,
    Chunk,
    Measured,
    Plan,
    Time,
    cases_of_vllm,
    compare,
    contexts_of,
    error_of,
    factor_of,
    figures,
    frames_before,
    parser,
)

from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.checkpoint import read_config
from omnistage.stages.vocoder.decoder import Frames, Piece


def last_chunk(vocoder: StreamingVocoder, frames: Frames, context: int) -> torch.Tensor:
    """The samples of the last chunk, decoded with so many frames before it."""
    slot = vocoder.open()
    piece = Piece(slot, frames[-STEADY_FRAMES - context :])
    pcm = vocoder.decode([piece]).pcm[0, context * vocoder.samples_per_frame :]
    vocoder.close(slot)
    return pcm


def test_samples_depend_on_as_many_frames_before_as_are_told(tiny_checkpoint: Path) -> None:
    model = str(tiny_checkpoint)
    exact = frames_before(read_config(model)["code2wav_config"])
    vocoder = StreamingVocoder.from_checkpoint(model, torch.device("cpu"), torch.float32, 1)
    # In float64 what is left of a difference is no rounding.
    vocoder = StreamingVocoder(vocoder.model.double(), num_slots=1)
    plan = Plan(model, "float32", True, [1], [exact], 1)
    frames = plan.frames(0, exact + STEADY_FRAMES + 30)
    whole = last_chunk(vocoder, frames, exact + 30)
    assert (last_chunk(vocoder, frames, exact) - whole).abs().max() < 1e-6
    assert (last_chunk(vocoder, frames, exact - 12) - whole).abs().max() > 1e-6


def test_the_real_vocoder_reaches_back_over_its_windows_and_convolutions() -> None:
    assert frames_before(real_config().code2wav_config.to_dict()) == 8 * 71 + 10


def test_a_chunk_costs_its_context_as_well() -> None:
    assert factor_of(0) == 1.0
    assert factor_of(25) == 2.0
    assert factor_of(578) == pytest.approx(24.12)


def test_a_context_is_a_number_or_all_that_is_needed() -> None:
    assert contexts_of("25,exact", 578) == [25, 578]
    assert contexts_of("exact,24", 24) == [24]
    with pytest.raises(ValueError, match="number of frames"):
        contexts_of("-1", 578)


def test_streams_are_numbers_of_at_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args(["--streams", "2,4"]).streams == [2, 4]
    with pytest.raises(SystemExit):
        parser().parse_args(["--streams", "0,4"])
    assert "--streams" in capsys.readouterr().err


def test_the_checked_chunks_have_the_longest_context_before_one(tiny_checkpoint: Path) -> None:
    plan = Plan(str(tiny_checkpoint), "float32", True, [1], [25, 90], 1)
    assert plan.checked[:3] == [Chunk(0, 2), Chunk(2, 27), Chunk(27, 52)]
    assert plan.checked[3].start > 90
    assert all(chunk.end - chunk.start == 25 for chunk in plan.checked[1:])


def test_of_several_runs_are_told_the_median_and_the_range() -> None:
    assert figures([3.0, 1.0, 2.5]) == [2.5, 1.0, 3.0]


def test_an_engine_is_as_far_from_another_as_its_samples_are() -> None:
    own = [np.array([0.0, 0.5], np.float32), np.array([0.5], np.float32)]
    other = [np.array([0.0, 0.5], np.float32), np.array([0.25], np.float32)]
    error = error_of(own, other)
    assert error["max_error"] == 0.25
    assert error["relative_rms"] == pytest.approx(0.25 / 0.5**0.5)


@pytest.mark.parametrize(("off", "is_right"), [(0.0, True), (1e-3, False)])
def test_samples_that_are_not_ours_are_an_error(
    off: float,
    is_right: bool,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = Plan(str(tiny_checkpoint), "float32", True, [4], [0, 24], 1)
    samples = np.array([0.5, -0.5], np.float32)
    told = {
        "run_ours": Measured(
            1.0, 2.0, 1.5, 0.0, {Case(OURS, 4, 25, 0): [Time(0.2, 0.1)]}, {0: [samples]}
        ),
        "run_vllm": Measured(
            3.0,
            4.0,
            3.5,
            0.0,
            {case: [Time(0.4, 0.1)] for case in cases_of_vllm(plan)},
            {0: [samples + 0.1], 24: [samples + np.float32(off)]},
        ),
    }
    monkeypatch.setattr("vocoder_engine.run", lambda run_one, _: told[run_one.__name__])
    assert compare(plan, 2) is is_right
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    starts = {line["engine"]: line["start_s"] for line in lines if "start_s" in line}
    assert starts == {OURS: [1.0] * 3, VLLM: [3.0] * 3}
    chunks = [line for line in lines if line.get("frames") == STEADY_FRAMES]
    assert [
        (one["engine"], one["context"], one["ms"][0], one["overhead_ms"][0]) for one in chunks
    ] == [
        (OURS, 0, 200.0, 100.0),
        (VLLM, 0, 400.0, 300.0),
        (VLLM, 24, 400.0, 300.0),
    ]
