"""Other arguments of a pipeline's call: which are taken, and that each request has its own."""

import asyncio
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from support.denoising.extra_arguments import refusal
from support.stages.stage_outputs import Outputs, ports_over
from support.tiny_pipelines import quiet

from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.control.extra import ExtraOptions
from omnistage.stages.diffusion.request.extra import failure_of, spread_texts
from omnistage.stages.diffusion.request.outputs import to_uint8
from omnistage.stages.diffusion.stage import DiffusionStage
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

SMALL = {"height": 32, "width": 32, "num_inference_steps": 3}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("prompt", "a field of the request itself"),
        ("guidance_scale", "a field of the request itself"),
        ("num_inference_steps", "a field of the request itself"),
        ("height", "a field of the request itself"),
        ("num_images_per_prompt", "it is the field n"),
        ("generator", "it is the field seed"),
        ("latents", "the server makes the latents"),
        ("prompt_embeds", "the server computes embeddings"),
        ("negative_pooled_prompt_embeds", "the server computes embeddings"),
        ("ip_adapter_image_embeds", "the server computes embeddings"),
        ("callback_on_step_end", "the server follows the steps itself"),
        ("callback_on_step_end_tensor_inputs", "the server follows the steps itself"),
        ("output_type", "the server reads the result itself"),
        ("return_dict", "the server reads the result itself"),
        ("joint_attention_kwargs", "it holds objects of the program"),
        ("attention_kwargs", "it holds objects of the program"),
        ("cross_attention_kwargs", "it holds objects of the program"),
        ("__class__", "it is no argument"),
        ("self", "it is no argument"),
        ("ip_adapter_image", "it is a medium"),
        ("mask_image", "it is a medium"),
    ],
)
@pytest.mark.parametrize("value", [1, "a", [1.0], None])
def test_what_is_the_servers_own_is_refused_with_why(
    sd3: Any, name: str, reason: str, value: Any
) -> None:
    error = refusal(sd3, {name: value})
    assert (error.status, error.param) == (400, f"extra.{name}")
    assert f"extra.{name}: is not for requests: " in error.message
    assert reason in error.message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_sequence_lenght", "did you mean max_sequence_length?"),
        ("promt_2", "did you mean prompt_2"),
        ("xyz", "its other arguments: clip_skip, max_sequence_length, mu, negative_prompt_2"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(sd3: Any, name: str, hint: str) -> None:
    error = refusal(sd3, {name: 1})
    assert (error.status, error.param) == (400, f"extra.{name}")
    assert f"this pipeline takes no {name}" in error.message
    assert hint in error.message


def test_a_value_of_another_type_is_refused_by_its_place(sd3: Any) -> None:
    error = refusal(sd3, {"clip_skip": 1, "sigmas": [1.0, "a"]})
    assert error.param == "extra.sigmas"
    assert error.message == "extra.sigmas: must be a list, each a number"
    assert ExtraOptions().arguments(sd3, {"clip_skip": None, "sigmas": [1.0, 0.5]}) == {
        "sigmas": [1.0, 0.5]
    }


def test_no_pipeline_of_diffusers_gives_away_what_is_the_servers_own() -> None:
    """By signature of all of them: nothing that has another meaning than numbers and texts."""
    names = [name for name in dir(diffusers) if name.endswith("Pipeline")]
    allowed: set[str] = set()
    for name in names:
        made = getattr(diffusers, name)
        if isinstance(made, type):
            parameters = inspect.signature(made.__call__).parameters
            allowed |= {one for one in parameters if not _refuses(made, one)}
    assert {"max_sequence_length", "prompt_2", "sigmas", "guidance_scale_2", "eta"} <= allowed
    words = ("latent", "embed", "kwargs", "callback", "generator", "output_type", "image", "video")
    # Numbers all of them, by their annotations.
    fine = {
        "image_guidance_scale",
        "input_images_mask",
        "max_input_image_size",
        "use_input_image_size_as_output",
        "img_guidance_scale",
        "condition_video_keep",
        "video_length",
        "image_cond_noise_scale",
        "image_crf",
        "image_noise_sigma_max",
        "image_noise_sigma_min",
        "text_to_image_strength",
        "video_noise_sigma_max",
        "video_noise_sigma_min",
        "render_text_images",
        "num_prompts_per_image",
        "image_embed_interleave",
        "output_latent",
        "add_noise_to_video_latents",
        "add_noise_to_image_latents",
        "latent_window_size",
        "num_ar_latent_conditional_frames",
        "num_latent_conditional_frames",
        "num_latent_frames_per_chunk",
    }
    assert {one for one in allowed if any(word in one for word in words)} <= fine


def _refuses(made: Any, name: str) -> bool:
    try:
        ExtraOptions(extra=[name]).check([made])
    except ValueError:
        return True
    return False


def test_texts_of_further_encoders_are_as_many_as_prompts() -> None:
    given = {"prompt": ["a", "b"], "prompt_2": "c", "negative_prompt_3": "d", "clip_skip": 1}
    assert spread_texts(given) == {**given, "prompt_2": ["c"] * 2, "negative_prompt_3": ["d"] * 2}
    given = {"prompt": "a", "prompt_2": "c"}
    assert spread_texts(given) == given


@pytest.mark.parametrize("error", [TypeError("a"), IndexError("b"), RuntimeError("c")])
def test_a_failure_in_the_pipelines_code_is_the_requests_if_it_gave_arguments(
    error: Exception,
) -> None:
    assert failure_of(error, None) is None
    assert failure_of(error, {}) is None
    found = failure_of(error, {"layers": 0})
    assert found is not None
    assert (found.status, found.param) == (400, "extra")
    assert type(error).__name__ in found.message
    plain = failure_of(ValueError("x"), None)
    assert plain is not None
    assert (plain.status, plain.message) == (400, "x")


# In a stage

EXTRAS: list[dict[str, Any]] = [
    {},
    {"prompt_2": "rain", "prompt_3": "a red house"},
    {"sigmas": [1.0, 0.6, 0.1]},
    {"max_sequence_length": 64},
    {"sigmas": [0.9, 0.8, 0.7]},
    {"clip_skip": 0, "negative_prompt_2": "noise"},
]


def body_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": "a cat", "guidance_scale": 3.0, **SMALL, "extra": dict(extra)}


async def served(folder: Path, bodies: list[dict[str, Any]]) -> tuple[Outputs, DiffusionStage]:
    outputs = Outputs()
    sender: Any = outputs
    ports = ports_over(folder, sender, height=32, width=32)
    stage = DiffusionStage(ports)
    await stage.start()
    await asyncio.gather(
        *(
            stage.serve(Opened(str(index), Request(Draw(body), ["image"], seed=index)))
            for index, body in enumerate(bodies)
        )
    )
    await stage.close()
    return outputs, stage


async def test_requests_at_once_have_each_their_own_arguments_and_pictures(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_tiny("sd3", tmp_path)
    bodies = [body_of(extra) for extra in EXTRAS]
    outputs, _ = await served(tmp_path, bodies)
    bare = quiet(DiffusionPipeline.from_pretrained(tmp_path))
    plain = []
    for index, body in enumerate(bodies):
        given = {name: value for name, value in body.items() if name != "extra"}
        generator = torch.Generator().manual_seed(index)
        with torch.inference_mode():
            made = bare(**given, **body["extra"], generator=generator, output_type="np").images
            generator = torch.Generator().manual_seed(index)
            without = bare(**given, generator=generator, output_type="np").images
        (wanted,) = to_uint8(made)
        assert np.abs(outputs.pixels(str(index))[0].astype(int) - wanted).max() <= 1
        plain.append(bool((made == without).all()))
    assert plain == [not extra for extra in EXTRAS]


async def test_a_value_that_the_pipeline_cannot_use_is_refused_and_the_stage_goes_on(
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)
    write_tiny("sd3", tmp_path)
    outputs = Outputs()
    sender: Any = outputs
    stage = DiffusionStage(ports_over(tmp_path, sender, height=32, width=32))
    await stage.start()
    wrong: list[dict[str, Any]] = [{"max_sequence_length": -3}, {"clip_skip": 4000}]
    for index, extra in enumerate(wrong):
        request = Request(Draw(body_of(extra)), ["image"], seed=1)
        with pytest.raises(RequestError, check=lambda error: error.status == 400):
            await stage.serve(Opened(f"wrong-{index}", request))
    await stage.serve(Opened("right", Request(Draw(body_of({})), ["image"], seed=1)))
    assert len(outputs.pixels("right")) == 1
    await stage.close()
