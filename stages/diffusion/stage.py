"""The diffusion stage: any Diffusers pipeline, unmodified, its steps batched across requests."""

import asyncio
import logging
import math
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import DiffusionPipeline

from omnistage.connectors.chunk import Tensor
from omnistage.stages.diffusion.edits import picture_arguments, pictures_for_warm_up
from omnistage.stages.diffusion.previews import ON_STEP, Previews, num_steps
from omnistage.stages.diffusion.step_batcher import MAX_BATCH, StepBatcher, find_denoiser
from omnistage.stages.diffusion.tasks import Tasks, arguments_of, makes_alpha
from omnistage.stages.diffusion.text_tokens import TextTokens
from omnistage.stages.dtypes import dtype_of
from omnistage.stages.failure import RequestError
from omnistage.stages.stage import StagePorts

logger = logging.getLogger(__name__)

OPTIONS = frozenset({"dtype", "load_format", "max_batch", "warm_up"})
# Fields of a request that are arguments of a pipeline, if it has them.
ARGUMENTS = (
    "negative_prompt",
    "width",
    "height",
    "num_inference_steps",
    "guidance_scale",
    "true_cfg_scale",
    "strength",
    "lora",
)
COUNT = "num_images_per_prompt"
STEPS = "num_inference_steps"
# Of the steps that a pipeline takes by default.
SHARE_OF_STEPS = {"low": 0.4, "medium": 0.7}


class DiffusionStage:
    """Loads a pipeline and runs requests in it.

    `engine`: `dtype`, `max_batch` (pictures of one forward), `warm_up` (arguments of the calls that
    come before the first request, such as a small height and width).
    """

    def __init__(self, ports: StagePorts) -> None:
        unknown = sorted(set(ports.engine) - OPTIONS)
        if unknown:
            allowed = ", ".join(sorted(OPTIONS))
            raise ValueError(f"unknown engine argument {unknown[0]}; allowed: {allowed}")
        if ports.engine.get("load_format", "auto") != "auto":
            raise ValueError("load_format: a pipeline has weights of its own only, 'auto'")
        dtype = ports.engine.get("dtype", "bfloat16" if torch.cuda.is_available() else "float32")
        self._ports = ports
        self._dtype = dtype_of(dtype)
        self._running: set[str] = set()

    async def start(self) -> dict[str, Any]:
        """Load, and make two pictures."""
        self._engine = await asyncio.to_thread(self._load)
        return {}

    def _load(self) -> StepBatcher:
        pipeline = DiffusionPipeline.from_pretrained(self._ports.model, torch_dtype=self._dtype)
        pipeline.to("cuda" if torch.cuda.is_available() else "cpu")
        pipeline.set_progress_bar_config(disable=True)
        self._tasks = Tasks.find(pipeline)
        self._tokens = TextTokens(pipeline)
        self._denoisers = [find_denoiser(pipeline)]
        once = {
            "prompt": "A warm-up.",
            STEPS: 1,
            **pictures_for_warm_up(pipeline),
            **self._ports.engine.get("warm_up", {}),
        }
        max_batch = self._ports.engine.get("max_batch", MAX_BATCH)
        return StepBatcher(pipeline, once, {**once, COUNT: 2}, max_batch)

    async def serve(self, request_id: str, meta: Mapping[str, Any]) -> None:
        """Make the pictures of one request; each step is told."""
        loop = asyncio.get_running_loop()
        body = meta["body"]
        images = [meta[f"image{i}"] for i in range(body.get("num_images", 0))]
        pipeline = self._tasks.choose(len(images), "mask" in meta)
        if body.get("background") == "transparent" and not makes_alpha(pipeline):
            raise RequestError(
                400,
                "This model's pictures have no alpha channel.",
                param="background",
                code="unsupported_parameter",
            )
        arguments = self._arguments(pipeline, body, meta.get("seed"))
        arguments |= picture_arguments(pipeline, images, meta.get("mask"), arguments)
        previews = None
        if body.get("partial_images"):
            previews = Previews(pipeline, self._denoisers, arguments, body["partial_images"])
            pipeline = previews.pipeline

        def told(running: Any, step: int, time: Any, tensors: Any) -> Any:
            self._tell(loop, request_id, {"step": step + 1, "steps": num_steps(running)})
            if previews is not None:
                made = previews.after_step(running, step, tensors["latents"])
                for picture in to_uint8(made.images)[:1] if made is not None else ():
                    self._tell(loop, request_id, {"is_preview": True}, picture)
            return tensors

        if ON_STEP in arguments_of(pipeline):
            arguments = {**arguments, ON_STEP: told}
        job = self._engine.submit(pipeline, **arguments)
        self._running.add(request_id)
        try:
            result = await awaited(job.result)
        except asyncio.CancelledError:
            self._engine.cancel(job)
            raise
        except ValueError as error:  # a pipeline's own check of its arguments
            raise RequestError(400, str(error), code="invalid_value") from error
        finally:
            self._running.discard(request_id)
        text_tokens = self._tokens.count(body["prompt"], body.get("negative_prompt"))
        pictures = await asyncio.to_thread(to_uint8, result.images)
        for index, picture in enumerate(pictures):
            tensors = {"pixels": Tensor.from_numpy(picture)}
            last = index == len(pictures) - 1
            told_last = {"index": index, "text_tokens": text_tokens}
            self._ports.send_output(request_id, "image", told_last, tensors, last)

    def _tell(
        self,
        loop: asyncio.AbstractEventLoop,
        request_id: str,
        meta: Mapping[str, Any],
        picture: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """From the engine's thread; the request may have been cancelled: nobody waits then."""
        tensors = {} if picture is None else {"pixels": Tensor.from_numpy(picture)}

        def send() -> None:
            if request_id in self._running:
                self._ports.send_output(request_id, "image", meta, tensors)

        loop.call_soon_threadsafe(send)

    def _arguments(
        self, pipeline: Any, body: Mapping[str, Any], seed: int | None
    ) -> dict[str, Any]:
        known = arguments_of(pipeline)
        arguments = {"prompt": body["prompt"], COUNT: body.get("n", 1), "output_type": "np"}
        for name in ARGUMENTS:
            if body.get(name) is None:
                continue
            if name not in known:
                raise RequestError(400, f"this pipeline takes no {name}", param=name)
            arguments[name] = body[name]
        share = SHARE_OF_STEPS.get(body.get("quality", ""))
        if share is not None and STEPS not in arguments:
            arguments[STEPS] = math.ceil(share * known[STEPS].default)
        if seed is not None:
            arguments["generator"] = torch.Generator().manual_seed(seed)
        return arguments

    async def alive(self) -> None:
        """A question that only the engine's thread can answer."""
        await awaited(self._engine.ping())

    async def close(self) -> None:
        """Cancel what runs and end the engine's thread."""
        await asyncio.to_thread(self._engine.close)


async def awaited(future: "Future[Any]") -> Any:
    """A future of another thread; ours may be cancelled, that one goes on."""
    return await asyncio.shield(asyncio.wrap_future(future))


def to_uint8(images: npt.NDArray[np.float32]) -> list[npt.NDArray[np.uint8]]:
    """Pictures [height, width, channels] of 0..255 from [n, height, width, channels] of 0..1."""
    rounded = (np.asarray(images).clip(0, 1) * 255).round().astype(np.uint8)
    return [np.ascontiguousarray(picture) for picture in rounded]
