"""The thinker stage: text out, and what the talker needs: token ids and a few hidden rows."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from transformers import AutoConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel

from omnistage.stages.messages.to_gateway import Ready, TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.given_text import GivenText
from omnistage.stages.qwen3_omni.media_markers import check_markers
from omnistage.stages.qwen3_omni.rope import Grid
from omnistage.stages.qwen3_omni.speech import SpokenTokens
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds
from omnistage.stages.qwen3_omni.thinker_model import thinker_config
from omnistage.stages.vllm.chat import Chat
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.engine import make_engine
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.fit import ModelPart
from omnistage.stages.vllm.grammars import Grammars, JudgedLLM
from omnistage.stages.vllm.ports import BridgeConfig
from omnistage.stages.vllm.traces import trace_headers
from omnistage.stages.vllm.warm_up import warm_up_text
from omnistage.stages.worker.stage import Opened, StagePorts

logger = logging.getLogger(__name__)

MAX_GRIDS = 1 << 16
THINKER = ModelPart("thinker.", Qwen3OmniMoeThinkerTextModel)
Rendered = Callable[[Mapping[str, Any]], dict[str, Any]]


class ThinkerLLM(JudgedLLM):
    """An engine that shows each rendered prompt to its request before the engine gets it."""

    rendered: dict[str, Rendered]

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """As AsyncLLM's, with our part of `extra_args` added."""
        extra = sampling_params.extra_args or {}
        on_rendered = self.rendered.get(extra.get("omnistage_id", ""))
        if on_rendered is not None:
            bridge = on_rendered(prompt)
            if bridge:
                sampling_params.extra_args = {**extra, "omnistage": bridge}
                sampling_params.skip_reading_prefix_cache = True
        async for output in super().generate(prompt, sampling_params, request_id, **options):
            yield output


class Grids:
    """Grids of the images and videos of a prompt.

    vLLM sends a medium that its engine has cached without its fields: they are remembered here
    by the medium's hash.
    """

    def __init__(self, config: Any) -> None:
        self._merge = config.thinker_config.vision_config.spatial_merge_size
        self._per_second = config.thinker_config.position_id_per_seconds
        self._seen: OrderedDict[str, tuple[tuple[int, int, int], float]] = OrderedDict()

    def of(self, prompt: Mapping[str, Any]) -> list[Grid]:
        """In the order of their offsets."""
        grids = []
        for modality in ("image", "video"):
            ranges = prompt.get("mm_placeholders", {}).get(modality, ())
            if not ranges:
                continue
            items = prompt["mm_kwargs"][modality]
            hashes = prompt["mm_hashes"][modality]
            for where, item, key in zip(ranges, items, hashes, strict=True):
                size, step = self._fields(modality, item, key)
                grids.append(Grid(where.offset, size, step))
        return sorted(grids, key=lambda grid: grid.offset)

    def _fields(self, modality: str, item: Any, key: str) -> tuple[tuple[int, int, int], float]:
        if item is None:
            return self._seen[key]
        t, h, w = item[f"{modality}_grid_thw"].data.flatten().tolist()
        seconds = 1.0
        if modality == "video":
            field = item.get("second_per_grid_ts")
            seconds = 2.0 if field is None else float(field.data)
        size = (int(t), int(h) // self._merge, int(w) // self._merge)
        self._seen[key] = size, seconds * self._per_second
        self._seen.move_to_end(key)
        while len(self._seen) > MAX_GRIDS:
            self._seen.popitem(last=False)
        return self._seen[key]


class Thinker(EngineStage):
    """One AsyncLLM and vLLM's chat serving over it."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._config = AutoConfig.from_pretrained(ports.model)
        self._grids = Grids(self._config)
        self._ids = SpeechIds.of(self._config)
        self._media_ids = frozenset(self._ids.media)
        has_talker = ports.downstream is not None
        self._given = GivenText(ports.model, self._ids) if has_talker else None

    async def start(self) -> Ready:
        """Load, and answer one request."""
        ports = self._ports
        bridge = None
        if ports.downstream is not None:
            bridge = BridgeConfig(
                export="hidden",
                sink=ports.downstream.rows,
                chunk_sizes=ports.hidden_chunk_sizes,
                ledger=ports.ledger,
            )
        self._engine = make_engine(
            ThinkerLLM,
            ports.model,
            ports.engine,
            bridge,
            thinker_config,
            stage=ports.name,
            part=THINKER,
        )
        self._engine.rendered = {}
        self._engine.grammars = Grammars()
        self._chat = Chat(self._engine, ports.model, ports.options)
        await warm_up_text(self._engine, self._chat)
        tokenizer = self._engine.renderer.tokenizer
        self._markers = tokenizer.convert_ids_to_tokens(list(self._ids.media))
        await self._take_control(ports, self._chat, THINKER.prefix)
        max_model_len = self._engine.model_config.max_model_len
        commands = self._control.commands
        return Ready(max_model_len=max_model_len, commands=commands, loras=self._loras)

    async def serve(self, opened: Opened) -> None:
        """Stream one answer; with audio, feed the talker. A given text only goes to the talker."""
        request_id, request = opened.id, opened.request
        if "input" in request.body:
            self._read_out(request_id, request)
            return
        has_turns = "messages" in request.body  # else a prompt: text or ids, no media
        if has_turns:
            check_markers(request.body, self._markers)
        spoken = None
        if "audio" in request.outputs and self._ports.downstream is not None:
            spoken = SpokenTokens(request_id, request, self._ports, self._tokenizer_length)
        if has_turns and self._ports.downstream is not None:
            self._engine.rendered[request_id] = partial(self._rendered, request_id, spoken)
        try:
            headers = trace_headers(request, self._ports.name)
            async with (
                self._adapters.using(request.body.get("model")),
                aclosing(self._chat.stream(request_id, request.body, headers)) as chunks,
            ):
                async for chunk in chunks:
                    is_last = not chunk["choices"]  # the usage chunk, always asked for
                    self._send(request_id, chunk, spoken, is_last)
                    if not is_last:
                        await self._room(request_id, spoken)
        finally:
            self._engine.rendered.pop(request_id, None)

    def _send(
        self,
        request_id: str,
        chunk: dict[str, Any],
        spoken: SpokenTokens | None,
        is_last: bool,
    ) -> None:
        if any(choice.get("token_ids") for choice in chunk["choices"]):
            self._ports.mark(request_id, "first_token")
        if spoken is not None:
            spoken.add(chunk)
            if is_last:
                spoken.finish()
        self._ports.send_output(request_id, TextDelta(chunk), last=is_last)

    async def _room(self, request_id: str, spoken: SpokenTokens | None) -> None:
        """Until the next chunk can go; the engine joins what comes meanwhile to one output."""
        room = self._ports.room
        while not room.is_free(request_id):
            try:
                async with asyncio.timeout(self._ports.deadlines.next_chunk_s / 2):
                    await room.wait(request_id)
            except TimeoutError:
                if spoken is not None:
                    spoken.show_life()

    def _read_out(self, request_id: str, request: Request) -> None:
        assert self._given is not None  # without a talker the gateway refuses to speak
        body = request.body
        prompt_ids = self._given.prompt(body["input"], body["instructions"])
        spoken = SpokenTokens(request_id, request, self._ports, self._tokenizer_length)
        spoken.open_whole(prompt_ids)
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": 0}
        chunk = {"choices": [], "usage": usage}
        self._ports.send_output(request_id, TextDelta(chunk), last=True)

    def _rendered(
        self, request_id: str, spoken: SpokenTokens | None, prompt: Mapping[str, Any]
    ) -> dict[str, Any]:
        self._ports.mark(request_id, "rendered")
        grids = self._grids.of(prompt)  # of every prompt: a later one may speak of its media
        if spoken is not None:
            spoken.open(prompt["prompt_token_ids"], grids)
        if self._ports.exports_all_hidden_states:
            return {"id": request_id, "export_all": True}
        # By id, not by placeholder: to the talker a marker that a user wrote is a medium too.
        if spoken is not None and not self._media_ids.isdisjoint(prompt["prompt_token_ids"]):
            return {"id": request_id, "export_ids": list(self._ids.media)}
        return {}

    def _tokenizer_length(self, token_ids: list[int]) -> int:
        tokenizer = self._engine.renderer.tokenizer
        return len(tokenizer.decode(token_ids, skip_special_tokens=True))
