"""The diffusion stage: any Diffusers pipeline, unmodified, its steps batched across requests."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import torch

from omnistage.connectors.chunk import Tensor
from omnistage.stages.diffusion.loading import LoadOptions
from omnistage.stages.diffusion.outputs import pictures_of
from omnistage.stages.diffusion.step_batcher import MAX_BATCH, StepBatcher
from omnistage.stages.diffusion.videos import check_kind, counted, output_kind
from omnistage.stages.failure import RequestError
from omnistage.stages.stage import StagePorts

logger = logging.getLogger(__name__)

OPTIONS = frozenset({"max_batch", "warm_up"}) | LoadOptions.names()
# Fields of a request that are arguments of a pipeline, if it has them.
ARGUMENTS = (
    "negative_prompt",
    "width",
    "height",
    "num_inference_steps",
    "guidance_scale",
    "true_cfg_scale",
    "num_frames",
)
ON_STEP = "callback_on_step_end"


class DiffusionStage:
    """Loads a pipeline and runs requests in it.

    `engine`: those of LoadOptions, `max_batch` (pictures of one forward), `warm_up` (arguments of
    the calls that come before the first request, such as a small height and width).
    """

    def __init__(self, ports: StagePorts) -> None:
        unknown = sorted(set(ports.engine) - OPTIONS)
        if unknown:
            allowed = ", ".join(sorted(OPTIONS))
            raise ValueError(f"unknown engine argument {unknown[0]}; allowed: {allowed}")
        self._ports = ports
        self._load_options = LoadOptions.of(ports.engine)
        self._running: set[str] = set()

    async def start(self) -> dict[str, Any]:
        """Load, and make two pictures."""
        self._engine = await asyncio.to_thread(self._load)
        return {}

    def _load(self) -> StepBatcher:
        loaded = self._load_options.load(self._ports.model)
        pipeline = loaded.pipeline
        self._known = inspect.signature(pipeline.__call__).parameters
        self._kind = output_kind(self._known)
        prompt = "A warm-up."
        short = {"num_inference_steps": 1, **self._ports.engine.get("warm_up", {})}
        once, twice = ({**counted(num, prompt, self._known), **short} for num in (1, 2))
        max_batch = self._ports.engine.get("max_batch", MAX_BATCH)
        has_side_lane = loaded.turns is None
        return StepBatcher(pipeline, once, twice, max_batch, has_side_lane, loaded.parts.dit)

    async def serve(self, request_id: str, meta: Mapping[str, Any]) -> None:
        """Make the pictures of one request; each step is told."""
        loop = asyncio.get_running_loop()
        body = meta["body"]
        check_kind(meta["outputs"], self._kind)

        def told(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
            loop.call_soon_threadsafe(self._tell_step, request_id, step + 1)
            return tensors

        job = self._engine.submit(**self._arguments(body, meta.get("seed"), told))
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
        num = body.get("n", 1) * (1 if isinstance(body["prompt"], str) else len(body["prompt"]))
        pictures = await asyncio.to_thread(pictures_of, result, num)
        for index, picture in enumerate(pictures):
            tensors = {"pixels": Tensor.from_numpy(picture)}
            last = index == len(pictures) - 1
            self._ports.send_output(request_id, self._kind, {"index": index}, tensors, last)

    def _tell_step(self, request_id: str, step: int) -> None:
        """A step may be told after its request was cancelled: nobody waits for it then."""
        if request_id in self._running:
            self._ports.send_output(request_id, self._kind, {"step": step})

    def _arguments(
        self, body: Mapping[str, Any], seed: int | None, told: Callable[..., Any]
    ) -> dict[str, Any]:
        arguments = counted(body.get("n", 1), body["prompt"], self._known) | {"output_type": "np"}
        for name in ARGUMENTS:
            if body.get(name) is None:
                continue
            if name not in self._known:
                raise RequestError(400, f"this pipeline takes no {name}", param=name)
            arguments[name] = body[name]
        prompt, negative = body["prompt"], arguments.get("negative_prompt")
        if not isinstance(prompt, str) and negative is not None:
            arguments["negative_prompt"] = [negative] * len(arguments["prompt"])
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


async def awaited(future: "Future[Any]") -> Any:
    """A future of another thread; ours may be cancelled, that one goes on."""
    return await asyncio.shield(asyncio.wrap_future(future))
