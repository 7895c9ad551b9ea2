"""The stage of image ids: texts in, the states that the denoiser draws from out."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.kinds import Payload
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
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.image_ids import SAMPLED, IdSteps, ImageIdsStage, tell_nobody
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step.request_options import ExportedRows, late_input_options
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.lanes import lane_of
from omnistage.stages.worker.stage import Opened, StagePorts

NO_WEIGHTS = "its weights are a part of a checkpoint, which its engine does not read again"
PROMPT, NEGATIVE = "prompt_embeds", "negative_prompt_embeds"  # arguments of the pipeline
MASKS = {PROMPT: "prompt_attention_mask", NEGATIVE: "negative_prompt_attention_mask"}
FILES = (GENERATION, WORDS, IMAGE_TOKENS, TEMPLATE)
GUIDANCE = "guidance"  # an option of the stage
NO_EDITS = "This model's graph makes pictures from words only: it reads none to edit."


class ImageIds(ImageIdsStage):
    """Makes images' ids, guided; the states of texts and ids leave from its engine."""

    def __init__(self, ports: StagePorts) -> None:
        super().__init__(ports, SCHEMA, "states")

    async def start(self) -> Ready:
        """Load, and make an image of one id."""
        ports = self._ports
        checkpoint = Checkpoint(ports.model)
        missing = [name for name in FILES if not checkpoint.has(name)]
        if missing or checkpoint.folder is None:
            raise ValueError(f"{ports.model} has no {', '.join(missing)}")
        self._prompts = Prompts(checkpoint.folder, checkpoint.config)
        usual = checkpoint.json(GENERATION)
        self._engine = make_engine(
            AsyncLLM,
            ports.model,
            self._engine_options(IMAGE_IDS),
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
        return await self._make_ready(usual_sampling(usual), NO_WEIGHTS)

    async def _warm(
        self, request_id: str, num_tokens: int, sampling: Mapping[str, Any], lane: int
    ) -> None:
        await self._run(request_id, IdsPrompt([0] * num_tokens), sampling, lane=lane)

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
            edge.announce(request_id, Open(request, described(about)))
        to = [edge.target for edge in edges]
        headers = trace_headers(request, self._ports.name)
        lane = lane_of(request_id, self._ports.num_lanes)
        steps = IdSteps(self._ports, request_id, sum(one.num_made for one in texts[PROMPT]))
        async with asyncio.TaskGroup() as group:
            for name, number, prompt in numbered(texts):
                options = self._options(request_id, prompt, to, Rows(name, number))
                own, seed = f"{request_id}-{name}-{number}", self._seed(request, number)
                tell = steps.add if name == PROMPT else tell_nobody
                group.create_task(self._run(own, prompt, seed, options, lane, headers, tell))

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
        tell: Callable[[int], None] = tell_nobody,
    ) -> None:
        """Read a prompt and make its ids; what leaves leaves from the engine."""
        await self._generated(
            request_id,
            list(prompt.ids),
            prompt.num_made,
            sampling,
            options or self._options(request_id, prompt, [], None),
            lane,
            headers,
            tell,
        )


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
