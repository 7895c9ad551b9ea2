"""DreamID-Omni's pipeline against the recorded videos of its authors' code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from references.dreamid_omni_scenes import SCENES
from support.denoising.begun_together import begin_together
from support.oracles.dreamid_omni import RecordedScenes, call_of

from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.merging.setting import DEFAULT
from omnistage.stages.worker.failure import RequestError

WAIT_S = 600
SMALL = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 2}


@pytest.fixture(scope="module")
def recorded(tiny_dreamid_omni: Path) -> RecordedScenes:
    return RecordedScenes(tiny_dreamid_omni)


@pytest.fixture(scope="module")
def pipeline(tiny_dreamid_omni: Path) -> Any:
    path = "omnistage.stages.dreamid_omni.pipeline.DreamIDOmniPipeline"
    return LoadOptions(pipeline_class=path).load(str(tiny_dreamid_omni)).pipeline


@pytest.fixture(scope="module")
def engine(pipeline: Any) -> Iterator[StepBatcher]:
    once, twice = ({**call_of("one"), **SMALL, "num_videos_per_prompt": n} for n in (1, 2))
    made = StepBatcher(pipeline, once, twice)
    yield made
    made.close()


@torch.inference_mode()
def made_by(pipeline: Any, **call: Any) -> Any:
    return pipeline(**call)


@pytest.mark.parametrize("name", SCENES)
def test_a_video_and_its_audio_equal_the_authors(
    name: str, pipeline: Any, recorded: RecordedScenes
) -> None:
    recorded.check(name, made_by(pipeline, **call_of(name)))


def test_videos_at_once_equal_the_authors_and_those_of_one_size_share_forwards(
    engine: StepBatcher, pipeline: Any, recorded: RecordedScenes
) -> None:
    names = ["one", "same size", "two", "longer"]
    steps: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    before = engine.batch_sizes.copy()
    begin_together(engine, len(names))
    jobs = [
        engine.submit(
            None, DEFAULT, lambda *one, told=steps[name]: told.append(one), **call_of(name)
        )
        for name in names
    ]
    for name, job in zip(names, jobs, strict=True):
        recorded.check(name, job.result.result(WAIT_S))
        number = SCENES[name].num_steps
        assert steps[name] == [(step + 1, number) for step in range(number)]
    new = engine.batch_sizes - before
    assert new == {2: 3, 1: 1 + 4 + 2}


def test_videos_of_one_prompt_are_those_of_both_generators_in_turn(pipeline: Any) -> None:
    """The second video's noise follows the first's, and so does its audio's, of a second state."""
    call = {**call_of("one"), **SMALL, "num_inference_steps": 1}
    both = made_by(pipeline, **call, num_videos_per_prompt=2)
    generator = torch.Generator().manual_seed(SCENES["one"].seed)
    first = made_by(pipeline, **{**call, "generator": generator})
    assert both.frames.shape[0] == both.audio.shape[0] == 2
    assert abs(both.frames[0] - first.frames[0]).max() < 1e-4
    assert (both.audio[0] - first.audio[0]).abs().max() < 1e-4
    assert (both.audio[1] - first.audio[0]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("change", "param", "problem"),
    [
        ({"height": 48}, None, "multiples of 32"),
        ({"num_frames": 8}, "num_frames", "a multiple of 4 and one"),
        ({"num_frames": 1}, "num_frames", "a multiple of 4 and one"),
        ({"num_frames": 601}, "num_frames", "up to 597"),
        ({"frame_rate": 25.0}, "fps", "must be 24"),
        ({"image": []}, "input_reference", "1 to 2, not 0"),
        ({"reference_audios": [torch.ones(1, 48_000)] * 3}, "audio_reference", "1 to 2, not 3"),
        ({"reference_audios": [torch.zeros(1, 48_000)]}, "audio_reference", "is silent"),
        (
            {"reference_audios": [torch.cat([torch.ones(1, 16_000), torch.zeros(1, 16_000)], 1)]},
            "audio_reference",
            "is silent",
        ),
        ({"reference_audios": [torch.ones(2, 17_000)]}, "audio_reference", "at least 1.1 s"),
    ],
    ids=[
        "side",
        "frames",
        "frame",
        "too long",
        "rate",
        "no face",
        "voices",
        "silence",
        "end",
        "short",
    ],
)
def test_what_is_not_made_is_refused(
    change: dict[str, Any], param: str | None, problem: str, pipeline: Any
) -> None:
    with pytest.raises((ValueError, RequestError), match=problem) as refusal:
        made_by(pipeline, **{**call_of("one"), **SMALL, **change})
    assert getattr(refusal.value, "param", None) == param
