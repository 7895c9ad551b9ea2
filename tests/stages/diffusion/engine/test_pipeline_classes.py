"""Tiny pipelines of many classes: calls below the engine equal those of a bare twin.

One of each kind of mechanism; `make pipelines` runs all that can be built.
"""

from concurrent.futures import CancelledError
from contextlib import closing

import diffusers
import pytest
import torch
from pipelines import PAGE, recorded
from support.tiny_pipelines.build import build
from support.tiny_pipelines.calls import arguments
from support.tiny_pipelines.compare import TIMEOUT_S, compare, short_calls

from omnistage.stages.diffusion.engine.step_batcher import StepBatcher

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:diffusers.*")


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("AnimateDiffPipeline", "none"),  # its text has a row per frame
        ("CogVideoXPipeline", "all"),  # makes one video of each prompt, whatever number is wanted
        ("FluxControlNetPipeline", "all"),  # residuals as lists; a ControlNet at each step
        ("FluxFillPipeline", "all"),
        ("GlmImagePipeline", "all"),  # an object as an argument
        ("StableDiffusionAdapterPipeline", "all"),  # a list that the denoiser empties
        ("StableDiffusionPAGPipeline", "none"),  # changes its denoiser in a call
        ("StableDiffusionXLPipeline", "all"),
        ("ZImageControlNetPipeline", "all"),  # lists of rows; residuals by number
    ],
)
def test_calls_alone_and_together_equal_the_bare_pipeline(name: str, shared: str) -> None:
    torch.set_num_threads(1)
    made = compare(getattr(diffusers, name))
    assert made.is_equal, made
    assert made.shared == shared
    written = recorded(PAGE.read_text(encoding="utf-8"))
    assert str(made) == written[name], "run `make pipelines`"


def test_a_pipeline_that_changes_its_denoiser_has_one_request_at_a_time() -> None:
    """One that waits may be cancelled; those after it are served."""
    torch.set_num_threads(1)
    pipeline = build(diffusers.StableDiffusionPAGPipeline)
    with closing(StepBatcher(pipeline, *short_calls(pipeline))) as engine:
        assert "one request at a time" in engine.learned.alone_because
        jobs = [engine.submit(**arguments(pipeline, seed)) for seed in range(3)]
        engine.cancel(jobs[1])
        assert [len(jobs[index].result.result(TIMEOUT_S).images) for index in (0, 2)] == [1, 1]
        with pytest.raises(CancelledError):
            jobs[1].result.result(TIMEOUT_S)
        assert set(engine.batch_sizes) == {1}
