"""From a request's body to the arguments of a pipeline's call."""

import inspect
import math
from collections.abc import Mapping

import torch

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.work import SHARE_OF_STEPS
from omnistage.stages.diffusion.pipeline import PipelineCall
from omnistage.stages.diffusion.request.frames import ARGUMENT as FRAMES
from omnistage.stages.diffusion.request.frames import frames_name
from omnistage.stages.diffusion.request.sound import sound_arguments
from omnistage.stages.diffusion.request.tasks import arguments_of
from omnistage.stages.diffusion.request.videos import counted
from omnistage.stages.worker.failure import RequestError

# Fields of a request that are arguments of a pipeline, if it has them.
FIELDS = (
    "negative_prompt",
    "width",
    "height",
    "num_inference_steps",
    "guidance_scale",
    "true_cfg_scale",
    "strength",
    "num_frames",
    "layers",
    "resolution",
)
STEPS = "num_inference_steps"
RATES = ("frame_rate", "fps")  # a video's, as pipelines that are told call it


def call_arguments(pipeline: PipelineCall, body: JsonMap, seed: int | None) -> dict[str, object]:
    """Arguments of one request's call, without a prompt if its body has none.

    Raises RequestError for a field that the pipeline does not take.
    """
    known = arguments_of(pipeline)
    prompt = {"prompt": body["prompt"]} if "prompt" in body else {}
    arguments = counted(body.get("n") or 1, prompt, known) | {"output_type": "np"}
    for name in FIELDS:
        if body.get(name) is None:
            continue
        argument = argument_of(known, name)
        if argument is None:
            raise RequestError(400, f"this pipeline takes no {name}", param=name)
        arguments[argument] = body[name]
    rate = next((one for one in RATES if one in known), None)
    if rate is not None and body.get("fps") is not None:
        arguments[rate] = body["fps"]
    arguments |= sound_arguments(known, body)
    share = SHARE_OF_STEPS.get(body.get("quality") or "")
    default = known[STEPS].default if STEPS in known else None
    if share is not None and STEPS not in arguments and type(default) is int:
        arguments[STEPS] = math.ceil(share * default)
    prompts = arguments.get("prompt")
    if isinstance(prompts, list) and "negative_prompt" in arguments:
        arguments["negative_prompt"] = [arguments["negative_prompt"]] * len(prompts)
    if seed is not None:
        arguments["generator"] = torch.Generator().manual_seed(seed)
    return arguments


def argument_of(known: Mapping[str, inspect.Parameter], field: str) -> str | None:
    """Return the argument of a call that one of FIELDS is; None if it has none."""
    if field == FRAMES:
        return frames_name(known)
    return field if field in known else None


def frame_rate(pipeline: PipelineCall, arguments: Mapping[str, object]) -> float:
    """Return the frames per second that a call is made for; 0 where its pipeline is not told."""
    known = arguments_of(pipeline)
    name = next((one for one in RATES if one in known), None)
    rate = 0 if name is None else arguments.get(name, known[name].default)
    return rate if isinstance(rate, int | float) else 0


def num_pictures(body: JsonMap) -> int:
    """How many one request asks for: `n` of each prompt."""
    num_prompts = 1 if isinstance(body["prompt"], str) else len(body["prompt"])
    return (body.get("n") or 1) * num_prompts
