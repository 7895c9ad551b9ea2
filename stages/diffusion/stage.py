"""The diffusion stage: any Diffusers pipeline, unmodified, its steps batched across requests."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import DiffusionPipeline

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver
from omnistage.stages.diffusion.prompt_embeds import Upstream, blank_embeds, without_text
from omnistage.stages.diffusion.step_batcher import MAX_BATCH, StepBatcher
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
)
COUNT = "num_images_per_prompt"
ON_STEP = "callback_on_step_end"


class DiffusionStage:
    """Loads a pipeline and runs requests in it.

    `engine`: `dtype`, `max_batch` (pictures of one forward), `warm_up` (arguments of the calls that
    come before the first request, such as a small height and width). With a stage upstream the
    prompts are its embeddings, and the pipeline is loaded without its own text encoder.
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
        self._upstream = Upstream(ports) if ports.upstream else None

    async def start(self) -> dict[str, Any]:
        """Load, and make two pictures."""
        self._engine = await asyncio.to_thread(self._load)
        return {}

    def _load(self) -> StepBatcher:
        model = self._ports.model
        without = without_text(model) if self._upstream else {}
        pipeline = DiffusionPipeline.from_pretrained(model, torch_dtype=self._dtype, **without)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        pipeline.to(self._device)
        pipeline.set_progress_bar_config(disable=True)
        self._known = inspect.signature(pipeline.__call__).parameters
        prompt = blank_embeds(model, self._dtype) if self._upstream else {"prompt": "A warm-up."}
        once = {
            **prompt,
            "num_inference_steps": 1,
            **self._ports.engine.get("warm_up", {}),
        }
        max_batch = self._ports.engine.get("max_batch", MAX_BATCH)
        return StepBatcher(pipeline, once, {**once, COUNT: 2}, max_batch)

    async def serve(self, request_id: str, meta: Mapping[str, Any]) -> None:
        """Make the pictures of one request; each step is told."""
        loop = asyncio.get_running_loop()
        request = meta.get("request", meta)
        prompt = await self._prompt(request_id, meta)

        def told(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
            loop.call_soon_threadsafe(self._tell_step, request_id, step + 1)
            return tensors

        arguments = self._arguments(prompt, request["body"], request.get("seed"), told)
        job = self._engine.submit(**arguments)
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
        pictures = await asyncio.to_thread(to_uint8, result.images)
        for index, picture in enumerate(pictures):
            tensors = {"pixels": Tensor.from_numpy(picture)}
            last = index == len(pictures) - 1
            self._ports.send_output(request_id, "image", {"index": index}, tensors, last)

    async def _prompt(self, request_id: str, meta: Mapping[str, Any]) -> Mapping[str, Any]:
        """The prompt as arguments: its text, or what the stage upstream made of it."""
        if self._upstream is None:
            return {"prompt": meta["body"]["prompt"]}
        embeds = await self._upstream.receive(request_id, meta["embeds"])
        return embeds.arguments(self._device, self._dtype)

    def take(self, receiver: Receiver, chunk: Chunk) -> None:
        """Rows of a prompt's embeddings."""
        if self._upstream is not None:
            self._upstream.take(receiver, chunk)

    def _tell_step(self, request_id: str, step: int) -> None:
        """A step may be told after its request was cancelled: nobody waits for it then."""
        if request_id in self._running:
            self._ports.send_output(request_id, "image", {"step": step})

    def _arguments(
        self,
        prompt: Mapping[str, Any],
        body: Mapping[str, Any],
        seed: int | None,
        told: Callable[..., Any],
    ) -> dict[str, Any]:
        arguments = {**prompt, COUNT: body.get("n", 1), "output_type": "np"}
        for name in ARGUMENTS:
            if body.get(name) is None or f"{name}_embeds" in arguments:
                continue
            if name not in self._known:
                raise RequestError(400, f"this pipeline takes no {name}", param=name)
            arguments[name] = body[name]
        if seed is not None:
            arguments["generator"] = torch.Generator().manual_seed(seed)
        if ON_STEP in self._known:
            arguments[ON_STEP] = told
        return arguments

    async def alive(self) -> None:
        """A question that only the engine's thread can answer."""
        await awaited(self._engine.ping())

    async def close(self) -> None:
        """Cancel what runs and end the engine's thread."""
        await asyncio.to_thread(self._engine.close)
        if self._upstream is not None:
            self._upstream.close()


async def awaited(future: "Future[Any]") -> Any:
    """A future of another thread; ours may be cancelled, that one goes on."""
    return await asyncio.shield(asyncio.wrap_future(future))


def to_uint8(images: npt.NDArray[np.float32]) -> list[npt.NDArray[np.uint8]]:
    """Pictures [height, width, 3] of 0..255 from [n, height, width, 3] of 0..1."""
    rounded = (np.asarray(images).clip(0, 1) * 255).round().astype(np.uint8)
    return [np.ascontiguousarray(picture) for picture in rounded]
