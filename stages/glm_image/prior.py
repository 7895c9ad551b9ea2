"""The stage of image ids: prompts in, the ids that the pipeline draws from out."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stages.device.devices import device_of
from omnistage.stages.glm_image.family import PRIOR
from omnistage.stages.glm_image.grids import ID_SIDE, prior_ids, sides_of
from omnistage.stages.glm_image.prior_model import prior_config
from omnistage.stages.glm_image.prior_prompt import PriorPrompt, PriorPrompts
from omnistage.stages.glm_image.sources import (
    FOLDER,
    SourceEncoder,
    SourceIds,
    fitting,
    size_after,
)
from omnistage.stages.glm_image.step_schema import POSITION, PRIOR_SCHEMA
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.edge import Ids, Open, described
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.image_ids import IdSteps, ImageIdsStage, tell_nobody
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.request_options import late_input_options
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.lanes import lane_of
from omnistage.stages.worker.stage import Opened, StagePorts

NO_WEIGHTS = "its weights are a part of a pipeline's folder, which its engine does not read again"
ARGUMENT = "prior_token_ids"  # of the pipeline
SAMPLING = {"temperature": 0.9, "top_p": 0.75}  # as published
IMAGE = "image"  # the field of images to edit


class Prior(ImageIdsStage):
    """One AsyncLLM that makes the ids of a draft and then of the image; both have known lengths."""

    def __init__(self, ports: StagePorts) -> None:
        super().__init__(ports, PRIOR_SCHEMA, "ids")
        self._encoding = ThreadPoolExecutor(1, "omnistage-sources")  # one request at a time

    async def start(self) -> Ready:
        """Load, and make two ids."""
        ports = self._ports
        self._prompts = PriorPrompts(ports.model)
        self._engine = make_engine(
            AsyncLLM,
            Checkpoint(ports.model).part(FOLDER),
            self._engine_options(PRIOR),
            BridgeConfig(PRIOR_SCHEMA, ledger=ports.ledger),
            prior_config,
            stage=ports.name,
            part=ModelPart("model.language_model."),
        )
        dtype = self._engine.model_config.dtype
        has_weights = ports.engine.get("load_format") != "dummy"
        load = partial(SourceEncoder, ports.model, device_of(None), dtype, has_weights=has_weights)
        self._sources = await asyncio.to_thread(load)
        return await self._make_ready(SAMPLING, NO_WEIGHTS)

    async def _warm(
        self, request_id: str, num_tokens: int, sampling: Mapping[str, Any], lane: int
    ) -> None:
        prompt = PriorPrompt.of_ids([0] * num_tokens, [(1, 1), (1, 1)])
        await self._make(request_id, prompt, sampling, lane)

    async def serve(self, opened: Opened) -> None:
        """Announce the request downstream, then make the ids of all its prompts."""
        request_id, request = opened.id, opened.request
        prompts, media = await asyncio.to_thread(self._read, opened)
        self._check_length(prompts)
        edit = await self._encoded(prompts)
        prompts = [one.with_sources(edit.ids) for one in prompts] if edit else prompts
        rows, columns = prompts[0].image
        given = {} if edit is None else edit.arguments(len(prompts))
        about = ArgumentsToCome(
            ids={name: list(ids.shape) for name, ids in given.items()}
            | {ARGUMENT: [len(prompts), 4 * rows * columns]},
            listed=list(given),
            values={"height": rows * ID_SIDE, "width": columns * ID_SIDE},
        )
        edges = self._ports.live(request)
        for edge in edges:
            edge.announce(request_id, Open(request, described(about)), media)
        given[ARGUMENT] = await self._make_all(request_id, request, prompts)
        for number, (name, ids) in enumerate(given.items()):
            tensors, is_last = {"ids": Tensor.from_numpy(ids)}, name == ARGUMENT
            for edge in edges:
                edge.feed.send(Chunk(request_id, Ids(name), number, tensors, last=is_last))

    def _read(self, opened: Opened) -> tuple[Sequence[PriorPrompt], Mapping[str, Tensor]]:
        """Read a request's prompts, and its images as both halves get them."""
        request = opened.request
        texts = request.fields["prompt"]
        texts = [texts] if isinstance(texts, str) else texts
        images: dict[str, Image.Image] = {}
        for one in request.given_media:
            if one.field != IMAGE:
                message = "This model edits whole images, and takes nothing beside them."
                raise RequestError(400, message, param=one.field, code="unsupported_parameter")
            pixels = opened.tensors[one.tensor].numpy()
            images[one.tensor] = fitting(self._prompts.processor.image_processor, pixels)
        given = list(images.values())
        has_size = any(request.fields.get(name) for name in ("height", "width"))
        sides = size_after(given[0]) if given and not has_size else sides_of(request.fields)
        prompts = [self._prompts.of(text, sides, given) for text in texts]
        return prompts, {name: Tensor.from_numpy(np.asarray(i)) for name, i in images.items()}

    async def _encoded(self, prompts: Sequence[PriorPrompt]) -> SourceIds | None:
        """Encode the images of a request, which all of its prompts have."""
        sources = prompts[0].sources
        if sources is None:
            return None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoding, self._sources.ids, sources)

    def _check_length(self, prompts: Sequence[PriorPrompt]) -> None:
        for prompt in prompts:
            wanted = len(prompt.ids) + prompt.num_made
            if wanted > self._max_model_len:
                read, most = len(prompt.ids), self._max_model_len
                message = f"has {read} tokens with its images, and {wanted - read} are made; "
                message += f"together at most {most}"
                raise RequestError(400, message, param="prompt", code="context_length_exceeded")

    async def _make_all(
        self, request_id: str, request: Request, prompts: Sequence[PriorPrompt]
    ) -> np.ndarray[Any, Any]:
        """The pipeline's ids int64 [prompts, n]."""
        headers = trace_headers(request, self._ports.name)
        lane = lane_of(request_id, self._ports.num_lanes)
        steps = IdSteps(self._ports, request_id, sum(one.num_made for one in prompts))

        async def make(row: int, prompt: PriorPrompt) -> np.ndarray[Any, Any]:
            name, seed = f"{request_id}-{row}", self._seed(request, row)
            made = await self._make(name, prompt, seed, lane, headers, steps.add)
            return prior_ids(made, prompt.image)

        async with asyncio.TaskGroup() as group:
            making = [group.create_task(make(row, one)) for row, one in enumerate(prompts)]
        return np.stack([one.result() for one in making])

    async def _make(
        self,
        request_id: str,
        prompt: PriorPrompt,
        sampling: Mapping[str, Any],
        lane: int,
        headers: Mapping[str, str] | None = None,
        tell: Callable[[int], None] = tell_nobody,
    ) -> Sequence[int]:
        """The ids of the prompt's image, once the last of them is there."""
        places, made_places = prompt.positions
        bridge = late_input_options(
            request_id,
            self._layout.pack(len(places), {POSITION: places}),
            first_token_position=len(places),
            ends={POSITION: (0, 0)},
            fed={POSITION: made_places.tolist()},
            complete=True,
        )
        made = await self._generated(
            request_id,
            prompt.ids.tolist(),
            prompt.num_made,
            sampling,
            bridge.extra_args(),
            lane,
            headers,
            tell,
        )
        return prompt.image_ids(made)
