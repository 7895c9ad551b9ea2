"""The stage of image ids: prompts in, the ids that the pipeline draws from out."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from vllm.platforms import current_platform

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.own_arguments import with_own
from omnistage.stages.glm_image.family import PRIOR
from omnistage.stages.glm_image.grids import prior_ids, sides_of
from omnistage.stages.glm_image.prior_model import prior_config
from omnistage.stages.glm_image.prior_prompt import PriorPrompt, PriorPrompts
from omnistage.stages.glm_image.step_schema import POSITION, PRIOR_SCHEMA
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.edge import Ids, Open, described
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.speech.talker_options import derived_seed
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.answers.truncation import take_over
from omnistage.stages.vllm.compat import AsyncLLM, RequestOutputKind, SamplingParams
from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.engine.warm_up import kinds_of_speech, warm_up
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.request_options import late_input_options
from omnistage.stages.vllm.step.step_schema import ColumnLayout
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.lanes import lane_of
from omnistage.stages.worker.stage import Opened, StagePorts

FOLDER = "vision_language_encoder"
NO_WEIGHTS = "its weights are a part of a pipeline's folder, which its engine does not read again"
ARGUMENT = "prior_token_ids"  # of the pipeline
SAMPLING = {"temperature": 0.9, "top_p": 0.75}  # as published
SAMPLED = ("temperature", "top_p", "top_k", "repetition_penalty")
NO_EDITS = "This graph makes pictures from words only: its first stage reads none to edit."


class Prior(EngineStage):
    """One AsyncLLM that makes the ids of a draft and then of the image; both have known lengths."""

    def __init__(self, ports: StagePorts) -> None:
        if not ports.downstream:
            raise ValueError(f"stage {ports.name} has no edge: nobody takes its ids")
        self._ports = ports
        self._layout = ColumnLayout(PRIOR_SCHEMA.columns)

    async def start(self) -> Ready:
        """Load, and make two ids."""
        ports = self._ports
        self._prompts = PriorPrompts(ports.model)
        options = {
            "skip_tokenizer_init": True,
            "dtype": "bfloat16" if current_platform.is_cuda_alike() else "float32",
            **with_own(ports.engine, PRIOR),
        }
        self._engine = make_engine(
            AsyncLLM,
            Checkpoint(ports.model).part(FOLDER),
            options,
            BridgeConfig(PRIOR_SCHEMA, ledger=ports.ledger),
            prior_config,
            stage=ports.name,
            part=ModelPart("model.language_model."),
        )
        told = self._engine.model_config.get_diff_sampling_param()
        self._sampling = SAMPLING | {name: told[name] for name in SAMPLED if name in told}
        self._max_model_len: int = self._engine.model_config.max_model_len
        await self._warm_up()
        self._control = EngineControl(self._engine, NO_WEIGHTS, stage=ports.name)
        return Ready(max_model_len=self._max_model_len, commands=self._control.commands)

    async def _warm_up(self) -> None:
        numbers = itertools.count()

        async def answer(length: int, **kind: Any) -> None:
            prompt = PriorPrompt([0] * max(length, 1), (1, 1), (1, 1))
            name, lanes = f"warm-up-{next(numbers)}", range(self._ports.num_lanes)
            made = (self._make(f"{name}-{lane}", prompt, kind, lane) for lane in lanes)
            await asyncio.gather(*made)

        await answer(0)
        await warm_up(self._engine.vllm_config, answer, kinds_of_speech())

    async def serve(self, opened: Opened) -> None:
        """Announce the request downstream, then make the ids of all its prompts."""
        request_id, request = opened.id, opened.request
        if request.given_media:
            raise RequestError(400, NO_EDITS, param="image", code="unsupported_model")
        texts = request.fields["prompt"]
        sides = sides_of(request.fields)
        prompts = [
            await asyncio.to_thread(self._prompts.of, text, sides)
            for text in ([texts] if isinstance(texts, str) else texts)
        ]
        self._check_length(prompts)
        edges = self._ports.live(request)
        height, width = sides
        rows, columns = prompts[0].image
        about = ArgumentsToCome(
            ids={ARGUMENT: [len(prompts), 4 * rows * columns]},
            values={"height": height, "width": width},
        )
        for edge in edges:
            edge.open.send(Chunk(request_id, Open(request, described(about)), last=True))
        made = await self._make_all(request_id, request, prompts)
        tensors = {"ids": Tensor.from_numpy(made)}
        for edge in edges:
            edge.feed.send(Chunk(request_id, Ids(ARGUMENT), 0, tensors, last=True))

    def _check_length(self, prompts: Sequence[PriorPrompt]) -> None:
        for prompt in prompts:
            wanted = len(prompt.ids) + prompt.num_made
            if wanted > self._max_model_len:
                message = (
                    f"has {len(prompt.ids)} tokens, and its image {prompt.num_made} with its "
                    f"draft; together at most {self._max_model_len}"
                )
                raise RequestError(400, message, param="prompt", code="context_length_exceeded")

    async def _make_all(
        self, request_id: str, request: Request, prompts: Sequence[PriorPrompt]
    ) -> np.ndarray[Any, Any]:
        """The pipeline's ids int64 [prompts, n]."""
        headers = trace_headers(request, self._ports.name)
        lane = lane_of(request_id, self._ports.num_lanes)

        async def make(row: int, prompt: PriorPrompt) -> np.ndarray[Any, Any]:
            name, seed = f"{request_id}-{row}", self._seed(request, row)
            return prior_ids(await self._make(name, prompt, seed, lane, headers), prompt.image)

        async with asyncio.TaskGroup() as group:
            making = [group.create_task(make(row, one)) for row, one in enumerate(prompts)]
        return np.stack([one.result() for one in making])

    def _seed(self, request: Request, row: int) -> dict[str, int]:
        if request.seed is None:
            return {}
        return {"seed": derived_seed(request.seed, f"{self._ports.stage}-{row}")}

    async def _make(
        self,
        request_id: str,
        prompt: PriorPrompt,
        sampling: Mapping[str, Any],
        lane: int,
        headers: Mapping[str, str] | None = None,
    ) -> Sequence[int]:
        """The ids of the prompt's image, once the last of them is there."""
        places = np.arange(len(prompt.ids))[:, None].repeat(3, axis=1)
        bridge = late_input_options(
            request_id,
            self._layout.pack(len(places), {POSITION: places}),
            first_token_position=len(places),
            ends={POSITION: (0, 0)},
            fed={POSITION: prompt.made_positions.tolist()},
            complete=True,
        )
        params = SamplingParams(
            **{**self._sampling, **sampling},
            max_tokens=prompt.num_made,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=bridge.extra_args(),
        )
        take_over(params)
        generated = self._engine.generate(
            {"prompt_token_ids": list(prompt.ids)},
            params,
            request_id,
            trace_headers=headers,
            data_parallel_rank=lane,
        )
        made: Sequence[int] = ()
        async for output in generated:
            made = output.outputs[0].token_ids
        return prompt.image_ids(made)
