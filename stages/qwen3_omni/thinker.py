"""The thinker stage: text out, and what the talker needs: token ids and a few hidden rows."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from transformers import AutoConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.messages.edge import Open
from omnistage.stages.messages.to_gateway import Ready, Speech, TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.given_text import GivenText
from omnistage.stages.qwen3_omni.speech import SpokenTokens
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, media_ids
from omnistage.stages.qwen3_omni.thinker_model import thinker_config
from omnistage.stages.vllm.chat import Chat
from omnistage.stages.vllm.engine import make_engine
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.fit import ModelPart
from omnistage.stages.vllm.followers import Follower, wait_for_room
from omnistage.stages.vllm.grammars import Grammars
from omnistage.stages.vllm.grids import Grids, check_encoder_room
from omnistage.stages.vllm.media_markers import check_markers
from omnistage.stages.vllm.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.released_text import ReleasedText
from omnistage.stages.vllm.rendered import RenderedLLM
from omnistage.stages.vllm.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.tokenization import Tokenization, is_about_tokens
from omnistage.stages.vllm.traces import trace_headers
from omnistage.stages.vllm.warm_up import warm_up_text
from omnistage.stages.worker.coming_text import ComingText, ComingTexts
from omnistage.stages.worker.stage import Opened, StagePorts

logger = logging.getLogger(__name__)

THINKER = ModelPart("thinker.", Qwen3OmniMoeThinkerTextModel)


class Thinker(EngineStage):
    """One AsyncLLM and vLLM's chat serving over it; each live edge gets what it carries."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._config = AutoConfig.from_pretrained(ports.model)
        self._grids = Grids(self._config)
        self._media_ids = media_ids(self._config)
        has_talker = ports.carrying(Payload.TOKENS)  # a checkpoint may have none
        self._given = GivenText(ports.model, SpeechIds.of(self._config)) if has_talker else None
        self._texts = ComingTexts()  # those of which more may come
        self._sinks = sinks_of(ports.downstream, Payload.ROWS)

    async def start(self) -> Ready:
        """Load, and answer one request."""
        ports = self._ports
        bridge = None
        if self._sinks:
            bridge = BridgeConfig(HIDDEN_STATES, sinks=self._sinks, ledger=ports.ledger)
        self._engine = make_engine(
            RenderedLLM,
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
        self._tokenization = Tokenization(self._engine, ports)
        await warm_up_text(self._engine, self._chat)
        tokenizer = self._engine.renderer.tokenizer
        self._markers = tokenizer.convert_ids_to_tokens(list(self._media_ids))
        await self._take_control(ports, self._chat, THINKER.prefix)
        max_model_len = self._engine.model_config.max_model_len
        commands = self._control.commands
        speech = None if self._given is None else Speech(takes_pieces=True)
        return Ready(
            max_model_len=max_model_len, commands=commands, loras=self._loras, speech=speech
        )

    async def serve(self, opened: Opened) -> None:
        """Stream one answer; with audio, feed the talker. A given text only goes to the talker."""
        request_id, request = opened.id, opened.request
        if "input" in request.body:
            await self._read_out(request_id, request)
            return
        if is_about_tokens(request.body):
            await self._tell_tokens(request_id, request.body)
            return
        has_turns = "messages" in request.body  # else a prompt: text or ids, no media
        if has_turns:
            check_markers(request.body, self._markers)
        spoken = self._spoken(request_id, request)
        followers: list[Follower] = [*spoken]
        if self._ports.live(request, Payload.TEXT):
            followers.append(released := ReleasedText(request_id, request, self._ports))
            released.open()
        if has_turns:
            self._engine.rendered[request_id] = partial(self._rendered, request_id, request, spoken)
        try:
            headers = trace_headers(request, self._ports.name)
            async with (
                self._adapters.using(request.body.get("model")),
                aclosing(self._chat.stream(request_id, request.body, headers)) as chunks,
            ):
                async for chunk in chunks:
                    is_last = not chunk["choices"]  # the usage chunk, always asked for
                    self._send(request_id, chunk, followers, is_last)
                    if not is_last:
                        await wait_for_room(self._ports, request_id, followers)
        finally:
            self._engine.rendered.pop(request_id, None)

    def _spoken(self, request_id: str, request: Request) -> list[SpokenTokens]:
        """The answer's way along each edge to a talker."""
        return [
            SpokenTokens(request_id, request, edge, self._tokenizer_length)
            for edge in self._ports.live(request, Payload.TOKENS)
        ]

    async def _tell_tokens(self, request_id: str, body: Mapping[str, Any]) -> None:
        asked = body.get("tokenize", {})
        if "messages" in asked:
            check_markers(asked, self._markers)
        await self._tokenization.serve(request_id, body)

    def _send(
        self,
        request_id: str,
        chunk: dict[str, Any],
        followers: Sequence[Follower],
        is_last: bool,
    ) -> None:
        if any(choice.get("token_ids") for choice in chunk["choices"]):
            self._ports.mark(request_id, "first_token")
        for follower in followers:
            follower.add(chunk)
            if is_last:
                follower.finish()
        self._ports.send_output(request_id, TextDelta(chunk), last=is_last)

    def more_text(self, request_id: str, text: str, last: bool) -> None:
        """The next piece of a given text."""
        self._texts.add(request_id, text, last)

    async def _read_out(self, request_id: str, request: Request) -> None:
        assert self._given is not None  # without a talker the gateway refuses to speak
        body = request.body
        spoken = self._spoken(request_id, request)
        if body.get("open"):
            num_tokens = await self._read_pieces(request_id, body, spoken)
        else:
            prompt_ids = self._given.prompt(body["input"], body["instructions"])
            num_tokens = len(prompt_ids)
            for one in spoken:
                one.open_whole(prompt_ids)
        usage = {"prompt_tokens": num_tokens, "completion_tokens": 0}
        chunk = {"choices": [], "usage": usage}
        self._ports.send_output(request_id, TextDelta(chunk), last=True)

    async def _read_pieces(
        self, request_id: str, body: Mapping[str, Any], spoken: Sequence[SpokenTokens]
    ) -> int:
        """Have a text spoken while it comes; how many tokens it has with its prompt."""
        assert self._given is not None
        text = self._texts.open(request_id, body)
        try:
            prompt_ids = self._given.prompt("", body["instructions"])
            for one in spoken:
                one.open(prompt_ids, [])
            return len(prompt_ids) + await self._speak(request_id, text, spoken)
        finally:
            self._texts.close(request_id)

    async def _speak(
        self, request_id: str, text: ComingText, spoken: Sequence[SpokenTokens]
    ) -> int:
        """Give the talkers each token as soon as it is known; how many there were."""
        assert self._given is not None

        def show_life() -> None:
            for one in spoken:
                one.show_life()

        def say(token_ids: list[int]) -> None:
            self._ports.mark(request_id, "first_token")
            self._ports.send_marks(request_id)
            for one in spoken:
                one.say(token_ids)

        tokens = self._given.coming()
        async for piece in text.pieces(self._ports.deadlines.next_chunk_s / 2, show_life):
            if token_ids := tokens.add(piece):
                say(token_ids)
        say(tokens.finish())
        for one in spoken:
            one.finish()
        return tokens.count

    def _rendered(
        self,
        request_id: str,
        request: Request,
        spoken: Sequence[SpokenTokens],
        prompt: Mapping[str, Any],
    ) -> dict[str, Any]:
        self._ports.mark(request_id, "rendered")
        grids = self._grids.of(prompt)  # of every prompt: a later one may speak of its media
        check_encoder_room(grids, self._engine.input_processor.mm_encoder_cache_size)
        for one in spoken:
            one.open(prompt["prompt_token_ids"], grids)
        edges = self._ports.live(request, Payload.ROWS)
        for edge in edges:
            if Payload.TOKENS not in edge.carries:  # nobody else announces the request there
                edge.open.send(Chunk(request_id, Open(request), last=True))
        bridge = {"id": request_id, "to": [edge.target for edge in edges]}
        if any(edge.all_hidden_states for edge in edges):
            return {**bridge, "export_all": True}
        # By id, not by placeholder: to the talker a marker that a user wrote is a medium too.
        if edges and not set(self._media_ids).isdisjoint(prompt["prompt_token_ids"]):
            return {**bridge, "export_ids": list(self._media_ids)}
        return {}

    def _tokenizer_length(self, token_ids: list[int]) -> int:
        tokenizer = self._engine.renderer.tokenizer
        return len(tokenizer.decode(token_ids, skip_special_tokens=True))
