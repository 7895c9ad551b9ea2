"""The stage of image ids: texts in, the states that the denoiser draws from out."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from vllm.platforms import current_platform

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.kinds import Payload
from omnistage.stage_configs.own_arguments import with_own
from omnistage.stages.mammothmoda2.family import IMAGE_IDS
from omnistage.stages.mammothmoda2.model_config import (
    DEFAULT_GUIDANCE,
    GENERATION,
    ImageIdsConfig,
)
from omnistage.stages.mammothmoda2.prompts import IdsPrompt, Prompts
from omnistage.stages.mammothmoda2.step_schema import FOLLOWER, IMAGE_END, SCHEMA
from omnistage.stages.mammothmoda2.tokens import IMAGE_END as IMAGE_END_MARK
from omnistage.stages.mammothmoda2.tokens import IMAGE_TOKENS, TEMPLATE, WORDS
from omnistage.stages.messages.arguments import ArgumentsToCome, RowsToCome
from omnistage.stages.messages.edge import Open, Rows, described
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
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step.request_options import ExportedRows, late_input_options
from omnistage.stages.vllm.step.step_schema import ColumnLayout
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.lanes import lane_of
from omnistage.stages.worker.stage import Opened, StagePorts

NO_WEIGHTS = "its weights are a part of a checkpoint, which its engine does not read again"
PROMPT, NEGATIVE = "prompt_embeds", "negative_prompt_embeds"  # arguments of the pipeline
MASKS = {PROMPT: "prompt_attention_mask", NEGATIVE: "negative_prompt_attention_mask"}
FILES = (GENERATION, WORDS, IMAGE_TOKENS, TEMPLATE)
SAMPLED = ("temperature", "top_p", "top_k", "repetition_penalty")
GUIDANCE = "guidance"  # an option of the stage
NO_EDITS = "This model's graph makes pictures from words only: it reads none to edit."


class ImageIds(EngineStage):
    """One AsyncLLM that makes images' ids, guided; the states of texts and ids leave from it."""

    def __init__(self, ports: StagePorts) -> None:
        if not ports.downstream:
            raise ValueError(f"stage {ports.name} has no edge: nobody takes its states")
        self._ports = ports
        self._layout = ColumnLayout(SCHEMA.columns)

    async def start(self) -> Ready:
        """Load, and make an image of one id."""
        ports = self._ports
        checkpoint = Checkpoint(ports.model)
        missing = [name for name in FILES if not checkpoint.has(name)]
        if missing or checkpoint.folder is None:
            raise ValueError(f"{ports.model} has no {', '.join(missing)}")
        self._prompts = Prompts(checkpoint.folder, checkpoint.config)
        usual = checkpoint.json(GENERATION)
        options = {
            "skip_tokenizer_init": True,
            "dtype": "bfloat16" if current_platform.is_cuda_alike() else "float32",
            **with_own(ports.engine, IMAGE_IDS),
        }
        self._engine = make_engine(
            AsyncLLM,
            ports.model,
            options,
            BridgeConfig(
                SCHEMA, sinks=sinks_of(ports.downstream, Payload.ARGUMENTS), ledger=ports.ledger
            ),
            ImageIdsConfig(
                usual["visual_token_start_id"],
                usual["eol_token_id"],
                self._prompts.tokens.ids[IMAGE_END_MARK],
                float(ports.options.get(GUIDANCE, DEFAULT_GUIDANCE)),
            ),
            stage=ports.name,
            part=ModelPart("llm_model.model.language_model."),
        )
        told = self._engine.model_config.get_diff_sampling_param()
        self._sampling = usual_sampling(usual) | {k: told[k] for k in SAMPLED if k in told}
        self._max_model_len: int = self._engine.model_config.max_model_len
        await self._warm_up()
        self._control = EngineControl(self._engine, NO_WEIGHTS, stage=ports.name)
        return Ready(max_model_len=self._max_model_len, commands=self._control.commands)

    async def _warm_up(self) -> None:
        numbers = itertools.count()

        async def answer(length: int, **kind: Any) -> None:
            prompt = IdsPrompt([0] * max(length, 1))
            name, lanes = f"warm-up-{next(numbers)}", range(self._ports.num_lanes)
            await asyncio.gather(
                *(self._run(f"{name}-{lane}", prompt, kind, lane=lane) for lane in lanes)
            )

        await answer(0)
        await warm_up(self._engine.vllm_config, answer, kinds_of_speech())

    async def serve(self, opened: Opened) -> None:
        """Announce the request downstream, then make the ids of all its prompts."""
        request_id, request = opened.id, opened.request
        if request.given_media:
            raise RequestError(400, NO_EDITS, param="image", code="unsupported_model")
        texts = await asyncio.to_thread(self._texts, request.fields)
        for name, given in texts.items():
            self._check_length(name.removesuffix("_embeds"), given)
        rows = {
            name: RowsToCome(
                0,
                [one.num_rows for one in given],
                MASKS[name],
                [list(one.left_out) for one in given],
            )
            for name, given in texts.items()
        }
        about = ArgumentsToCome(
            rows=rows,
            values={"num_image_rows": texts[PROMPT][0].num_image_rows},
            replaces=["prompt", "negative_prompt"],
        )
        edges = self._ports.live(request)
        for edge in edges:
            edge.open.send(Chunk(request_id, Open(request, described(about)), last=True))
        to = [edge.target for edge in edges]
        headers = trace_headers(request, self._ports.name)
        lane = lane_of(request_id, self._ports.num_lanes)
        async with asyncio.TaskGroup() as group:
            for name, number, prompt in numbered(texts):
                options = self._options(request_id, prompt, to, Rows(name, number))
                own, seed = f"{request_id}-{name}-{number}", self._seed(request, number)
                group.create_task(self._run(own, prompt, seed, options, lane, headers))

    def _texts(self, fields: Json) -> dict[str, list[IdsPrompt]]:
        """Return what is read for a request, by arguments of the pipeline."""
        prompts, negative = fields["prompt"], fields.get("negative_prompt")
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if not isinstance(negative, list):
            negative = [negative] * len(prompts)
        return {
            PROMPT: [self._prompts.image(one, fields) for one in prompts],
            NEGATIVE: [self._prompts.negative(one) for one in negative],
        }

    def _check_length(self, param: str, prompts: list[IdsPrompt]) -> None:
        for one in prompts:
            if len(one.ids) + one.num_made > self._max_model_len:
                message = (
                    f"has {len(one.ids)} tokens, and its image {one.num_made}; together at most "
                    f"{self._max_model_len}"
                )
                raise RequestError(400, message, param=param, code="context_length_exceeded")

    def _seed(self, request: Request, row: int) -> dict[str, int]:
        if request.seed is None:
            return {}
        return {"seed": derived_seed(request.seed, f"{self._ports.stage}-{row}")}

    def _options(
        self, request_id: str, prompt: IdsPrompt, to: list[str], rows: Rows | None
    ) -> dict[str, object]:
        options = late_input_options(
            request_id,
            self._layout.pack(len(prompt.ids), prompt.columns),
            first_token_position=len(prompt.ids),
            position_delta=prompt.num_unguided - len(prompt.ids),
            ends={FOLLOWER: (IMAGE_END, IMAGE_END)},
            fed={FOLLOWER: prompt.followers},
            complete=True,
        )
        exported = {} if rows is None else {"exported": ExportedRows(), "rows": rows}
        return msgspec.structs.replace(options, to=to, **exported).extra_args()

    async def _run(
        self,
        request_id: str,
        prompt: IdsPrompt,
        sampling: Mapping[str, Any],
        options: dict[str, object] | None = None,
        lane: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Read a prompt and make its ids; what leaves leaves from the engine."""
        params = SamplingParams(
            **{**self._sampling, **sampling},
            max_tokens=prompt.num_made,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=options or self._options(request_id, prompt, [], None),
        )
        take_over(params)
        generated = self._engine.generate(
            {"prompt_token_ids": list(prompt.ids)},
            params,
            request_id,
            trace_headers=headers,
            data_parallel_rank=lane,
        )
        async for _ in generated:
            pass


def usual_sampling(config: Json) -> dict[str, float]:
    """Return the sampling of a checkpoint's file of image generation."""
    told = {name: config[name] for name in SAMPLED if config.get(name) is not None}
    if config.get("do_sample"):
        return told
    penalty = {name: told[name] for name in told if name == "repetition_penalty"}
    return {**penalty, "temperature": 0.0}


def numbered(texts: Mapping[str, list[IdsPrompt]]) -> Iterator[tuple[str, int, IdsPrompt]]:
    """Yield each text with its argument and its number there."""
    for name, given in texts.items():
        for number, one in enumerate(given):
            yield name, number, one
