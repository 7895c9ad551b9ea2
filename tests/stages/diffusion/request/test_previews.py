"""Previews against the bare pipelines' decoding, written out."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from support.tiny_pipelines import Served, Settings, error, quiet, result

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.engine.switchboard import find_denoisers
from omnistage.stages.diffusion.request.previews import ON_STEP, Previews, due_steps, predicted
from omnistage.stages.diffusion.request.tasks import Tasks

STEPS = 6
NAMES = ("qwen-image", "flux", "sd3")
SIDE = 32


def decode_qwen_image(pipeline: Any, latents: torch.Tensor) -> torch.Tensor:
    shape = (1, -1, 1, 1, 1)
    mean = torch.tensor(pipeline.vae.config.latents_mean).view(shape)
    std = torch.tensor(pipeline.vae.config.latents_std).view(shape)
    unpacked = pipeline._unpack_latents(latents, SIDE, SIDE, pipeline.vae_scale_factor)
    picture: torch.Tensor = pipeline.vae.decode(unpacked * std + mean).sample[:, :, 0]
    return picture


def decode_flux(pipeline: Any, latents: torch.Tensor) -> torch.Tensor:
    unpacked = pipeline._unpack_latents(latents, SIDE, SIDE, pipeline.vae_scale_factor)
    return decode_sd3(pipeline, unpacked)


def decode_sd3(pipeline: Any, latents: torch.Tensor) -> torch.Tensor:
    config = pipeline.vae.config
    picture: torch.Tensor = pipeline.vae.decode(
        latents / config.scaling_factor + config.shift_factor
    ).sample
    return picture


DECODE: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "qwen-image": decode_qwen_image,
    "flux": decode_flux,
    "sd3": decode_sd3,
}


class Run:
    """One call with previews: its picture, its previews by step, and what went on inside."""

    def __init__(self, pipeline: Any, arguments: dict[str, Any], num_previews: int) -> None:
        self.previews = Previews(pipeline, find_denoisers(pipeline), arguments, num_previews)
        self.made: dict[int, torch.Tensor] = {}
        self.latents: list[torch.Tensor] = []
        self.velocities: list[torch.Tensor] = []
        denoiser = next(iter(find_denoisers(pipeline).values()))
        hook = denoiser.register_forward_hook(lambda _, __, out: self.velocities.append(out[0]))
        with torch.inference_mode():
            self.picture = self.previews.pipeline(**arguments, **{ON_STEP: self._told}).images
        hook.remove()

    def _told(self, running: Any, step: int, _: Any, tensors: Any) -> Any:
        self.latents.append(tensors["latents"])
        preview = self.previews.after_step(running, step, tensors["latents"])
        if preview is not None:
            self.made[step + 1] = preview.images
        return tensors


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@torch.inference_mode()
def test_a_preview_is_the_predicted_picture_decoded(name: str) -> None:
    """Without guidance: what the denoiser said is then what the scheduler was given."""
    pipeline = quiet(make_tiny(name))
    arguments = Settings(1, STEPS, 1.0).arguments(name)
    run = Run(pipeline, arguments, 3)
    assert sorted(run.made) == [2, 3, 4]
    assert len(run.velocities) == STEPS, "a preview must not run the denoiser"
    for step, preview in run.made.items():
        sigma = float(pipeline.scheduler.sigmas[step])
        clean = run.latents[step - 1] - sigma * run.velocities[step - 1]
        wanted = (DECODE[name](pipeline, clean) / 2 + 0.5).clamp(0, 1)
        assert torch.allclose(preview, wanted, atol=1e-5)
    assert torch.equal(run.picture, pipeline(**Settings(1, STEPS, 1.0).arguments(name)).images)


@torch.inference_mode()
def test_previews_change_nothing_and_the_last_would_be_the_picture(name: str) -> None:
    pipeline = quiet(make_tiny(name))
    settings = Settings(2, STEPS, 3.0)
    plain = pipeline(**settings.arguments(name)).images
    run = Run(pipeline, settings.arguments(name), 3)
    assert torch.equal(run.picture, plain)
    last = run.previews.decode(run.previews.pipeline, run.latents[-1])
    assert torch.equal(last.images, plain)


def test_previews_of_an_edit_cost_a_decoding_each_and_encode_nothing() -> None:
    task = Tasks.find(quiet(make_tiny("qwen-image"))).of("image")
    assert task is not None
    pipeline = task.pipeline
    calls = Counter[str]()
    parts = {
        "text": pipeline.text_encoder,
        "encode": pipeline.vae.encoder,
        "decode": pipeline.vae.decoder,
    }
    for name, part in parts.items():
        part.register_forward_hook(lambda *_, name=name: calls.update([name]))
    picture = torch.rand(1, 3, SIDE, SIDE)
    arguments = {**Settings(1, STEPS, 2.0).arguments("qwen-image"), "image": picture}
    run = Run(pipeline, arguments, 2)
    assert len(run.made) == 2
    assert calls == {"text": 2, "encode": 1, "decode": 3}


def test_a_preview_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = quiet(make_tiny("sd3"))
    arguments = Settings(1, STEPS, 1.0).arguments("sd3")
    previews = Previews(pipeline, ["transformer"], arguments, 3)
    nothing: Any = object()
    assert previews.after_step(nothing, 1, torch.zeros(1)) is None
    broken: Any = previews.pipeline
    broken._num_timesteps = STEPS  # as in a call, but with nothing recorded
    broken.scheduler.set_timesteps(STEPS)
    assert previews.after_step(broken, 1, torch.zeros(1)) is None
    assert "no previews" in caplog.text
    assert previews.after_step(broken, 2, torch.zeros(1)) is None


@pytest.mark.parametrize(
    ("steps", "num_previews", "due"),
    [(20, 3, {5, 10, 15}), (20, 0, set()), (3, 3, {1, 2}), (1, 3, set()), (50, 1, {25})],
)
def test_previews_are_spread_over_the_steps(steps: int, num_previews: int, due: set[int]) -> None:
    assert due_steps(steps, num_previews) == due


def test_only_straight_lines_are_followed() -> None:
    latents = torch.ones(1)
    assert predicted(DDIMScheduler(), torch.zeros(1), latents) is latents
    assert predicted(FlowMatchEulerDiscreteScheduler(), None, latents) is latents


def test_previews_beside_another_request_change_neither() -> None:
    served = Served("qwen-image")
    shown, other = Settings(1, STEPS, 2.0), Settings(2, STEPS, 2.0)
    arguments = shown.arguments("qwen-image")
    previews = Previews(served.pipeline, find_denoisers(served.pipeline), arguments, 3)
    seen: list[torch.Tensor] = []

    def told(running: Any, step: int, _: Any, tensors: Any) -> Any:
        preview = previews.after_step(running, step, tensors["latents"])
        seen.extend([] if preview is None else [preview.images])
        return tensors

    jobs = [
        served.engine.submit(previews.pipeline, **arguments, **{ON_STEP: told}),
        served.ask(other),
    ]
    errors = [
        error(result(job), served.expected(settings))
        for job, settings in zip(jobs, (shown, other), strict=True)
    ]
    served.engine.close()
    assert max(errors) < 1e-5
    assert len(seen) == 3
