"""The stage of a thinker: text out, and along each live edge what it carries of every answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from transformers import AutoConfig

from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.messages.body import Chat, Detokenize, GivenText, Tokenize
from omnistage.stages.messages.edge import Open
from omnistage.stages.messages.to_gateway import Ready, Speech, TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.speech.spoken_answer import SpokenAnswer
from omnistage.stages.vllm.answers.chat import ChatServing
from omnistage.stages.vllm.answers.followers import Follower, wait_for_room
from omnistage.stages.vllm.answers.released_text import ReleasedText
from omnistage.stages.vllm.answers.rendered import RenderedLLM
from omnistage.stages.vllm.answers.tokenization import Tokenization
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.engine.engine import engine_of_all_rows, make_engine
from omnistage.stages.vllm.engine.warm_up import warm_up_text
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.grammars.grammars import Grammars
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.media.media import reading_of, received
from omnistage.stages.vllm.media.media_markers import check_markers
from omnistage.stages.vllm.models.grids import Grids, check_encoder_room
from omnistage.stages.vllm.rows.row_cache import asked_gib
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts

Spoken = TypeVar("Spoken", bound=SpokenAnswer)


@dataclass(frozen=True, slots=True)
class ThinkerEngine:
    """The parts that a family makes its thinker's engine of.

    `config`: the override of the model's configuration. `part`: of the checkpoint. `media_ids`: the
    tokens that stand for sounds, images and videos.
    """

    config: Callable[[Any], Any]
    part: ModelPart
    media_ids: tuple[int, ...]


class ThinkerStage(EngineStage, ABC, Generic[Spoken]):
    """One AsyncLLM and vLLM's chat serving over it."""

    _engine: RenderedLLM

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._config = AutoConfig.from_pretrained(ports.model)
        self._grids = Grids(self._config)
        self._has_talker = bool(ports.carrying(Payload.TOKENS))  # a checkpoint may have none
        self._sinks = sinks_of(ports.downstream, Payload.ROWS)

    # What a family says

    spoken_class: type[Spoken]  # an answer's way along an edge to a talker

    @property
    @abstractmethod
    def parts(self) -> ThinkerEngine:
        """Returns what its engine is made with."""

    @property
    @abstractmethod
    def speech(self) -> Speech:
        """For `Ready`, of a thinker whose answers are spoken."""

    @abstractmethod
    def exported(
        self, prompt_ids: Sequence[int], edges: Sequence[Downstream]
    ) -> ExportedRows | None:
        """The rows of a prompt that leave along these edges, one at least; None: none do."""

    @abstractmethod
    async def read_out(self, request_id: str, request: Request, body: GivenText) -> int:
        """Have a given text spoken; how many tokens it has with its instructions.

        Without a talker the gateway refuses to speak.
        """

    # Start

    async def start(self) -> Ready:
        """Load, and answer one request."""
        ports, parts = self._ports, self.parts
        self._media_ids = list(parts.media_ids)
        engine, bridge = ports.engine, None
        edges = ports.carrying(Payload.ROWS)
        if self._sinks:
            gib = asked_gib(ports)
            exported = self.exported((), edges) if edges else None
            if exported is not None and exported.are_all:
                engine, gib = engine_of_all_rows(ports)
            bridge = BridgeConfig(
                HIDDEN_STATES, sinks=self._sinks, ledger=ports.ledger, row_cache_gib=gib
            )
        self._engine = make_engine(
            RenderedLLM,
            ports.model,
            engine,
            bridge,
            parts.config,
            stage=ports.name,
            part=parts.part,
        )
        self._engine.rendered = {}
        self._engine.has_row_cache = bridge is not None and bridge.row_cache_gib > 0
        self._engine.grammars = Grammars()
        self._chat = ChatServing(self._engine, ports.model, ports.options)
        self._tokenization = Tokenization(self._engine, ports)
        await warm_up_text(self._engine, self._chat)
        tokenizer = self._engine.renderer.tokenizer
        self._markers = tokenizer.convert_ids_to_tokens(self._media_ids)
        await self._take_control(ports, self._chat, parts.part.prefix)
        self._max_model_len = self._engine.model_config.max_model_len
        return Ready(
            max_model_len=self._max_model_len,
            commands=self._control.commands,
            loras=self._loras,
            speech=self.speech if self._has_talker else None,
            reading=reading_of(self._engine),
        )

    # Requests

    async def serve(self, opened: Opened) -> None:
        """Stream one answer, or read a given text; with audio, feed the talker."""
        with received(opened.media):
            await self._serve(opened.id, opened.request)

    async def _serve(self, request_id: str, request: Request) -> None:
        body = request.body
        if isinstance(body, GivenText):
            num_tokens = await self.read_out(request_id, request, body)
            usage = {"prompt_tokens": num_tokens, "completion_tokens": 0}
            chunk = {"choices": [], "usage": usage}
            self._ports.send_output(request_id, TextDelta(chunk), last=True)
        elif isinstance(body, Tokenize | Detokenize):
            await self._tell_tokens(request_id, body)
        else:
            await self._answer(request_id, request)

    async def _tell_tokens(self, request_id: str, body: Tokenize | Detokenize) -> None:
        if isinstance(body, Tokenize) and "messages" in body.fields:
            check_markers(body.fields, self._markers)
        await self._tokenization.serve(request_id, body)

    async def _answer(self, request_id: str, request: Request) -> None:
        has_turns = isinstance(request.body, Chat)  # else a prompt: text or ids, no media
        if has_turns:
            check_markers(request.fields, self._markers)
        spoken = self._spoken(request_id, request)
        followers: list[Follower] = [*spoken]
        if self._ports.live(request, Payload.TEXT):
            followers.append(released := ReleasedText(request_id, request, self._ports))
            released.open()
        if has_turns:
            self._engine.rendered[request_id] = partial(self._rendered, request_id, request, spoken)
        try:
            await self._stream(request_id, request, followers)
        finally:
            self._engine.rendered.pop(request_id, None)

    async def _stream(
        self, request_id: str, request: Request, followers: Sequence[Follower]
    ) -> None:
        headers = trace_headers(request, self._ports.name)
        async with (
            self._adapters.using(request.fields.get("model")),
            aclosing(self._chat.stream(request_id, request.fields, headers)) as chunks,
        ):
            async for chunk in chunks:
                is_last = not chunk["choices"]  # the usage chunk, always asked for
                self._send(request_id, chunk, followers, is_last)
                if not is_last:
                    await wait_for_room(self._ports, request_id, followers)

    def _send(
        self,
        request_id: str,
        chunk: Json,
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

    def _spoken(self, request_id: str, request: Request) -> list[Spoken]:
        """The answer's way along each edge to a talker."""
        return [
            self.spoken_class(request_id, request, edge, self._text_length)
            for edge in self._ports.live(request, Payload.TOKENS)
        ]

    def _text_length(self, token_ids: list[int]) -> int:
        tokenizer = self._engine.renderer.tokenizer
        return len(tokenizer.decode(token_ids, skip_special_tokens=True))

    def _rendered(
        self,
        request_id: str,
        request: Request,
        spoken: Sequence[Spoken],
        prompt: Mapping[str, Any],
    ) -> RequestOptions | None:
        self._ports.mark(request_id, "rendered")
        grids = self._grids.of(prompt)  # of every prompt: a later one may speak of its media
        check_encoder_room(grids, self._engine.input_processor.mm_encoder_cache_size)
        for one in spoken:
            one.open(prompt["prompt_token_ids"], grids)
        for edge in self._ports.live(request, Payload.ROWS):
            if Payload.TOKENS not in edge.carries:  # nobody else announces the request there
                edge.announce(request_id, Open(request))
        return self._bridge(request_id, request, prompt["prompt_token_ids"])

    def _bridge(
        self, request_id: str, request: Request, prompt_ids: Sequence[int]
    ) -> RequestOptions | None:
        """Returns what the bridge is told of a request; nothing, if nobody wants its rows."""
        edges = self._ports.live(request, Payload.ROWS)
        to = [edge.target for edge in edges]
        if request.keeps_rows:
            edges = self._ports.carrying(Payload.ROWS)
        exported = self.exported(prompt_ids, edges) if edges else None
        if exported is None:
            return None
        return RequestOptions(request_id, to, exported)
