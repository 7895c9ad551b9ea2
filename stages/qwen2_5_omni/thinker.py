"""The thinker stage: text out, and to the talker a row for every position of prompt and answer."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from transformers import AutoConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniThinkerTextModel

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.messages.edge import Open
from omnistage.stages.messages.to_gateway import Ready, Speech, TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.given_text import GivenText
from omnistage.stages.qwen2_5_omni.speech import SpokenRows
from omnistage.stages.qwen2_5_omni.thinker_model import thinker_config
from omnistage.stages.vllm.chat import Chat
from omnistage.stages.vllm.compat import RequestOutputKind, SamplingParams
from omnistage.stages.vllm.engine import make_engine
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.fit import ModelPart
from omnistage.stages.vllm.followers import Follower, wait_for_room
from omnistage.stages.vllm.grammars import Grammars
from omnistage.stages.vllm.grids import Grids
from omnistage.stages.vllm.media_markers import check_markers
from omnistage.stages.vllm.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.released_text import ReleasedText
from omnistage.stages.vllm.rendered import RenderedLLM
from omnistage.stages.vllm.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.tokenization import Tokenization, is_about_tokens
from omnistage.stages.vllm.traces import trace_headers
from omnistage.stages.vllm.warm_up import warm_up_text
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts

THINKER = ModelPart("thinker.", Qwen2_5OmniThinkerTextModel)
# Characters of a given text that one request has: its speech has at most 4096 codes, 82 s.
MAX_TEXT = 300


class Thinker(EngineStage):
    """One AsyncLLM and vLLM's chat serving over it; each live edge gets what it carries."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._config = AutoConfig.from_pretrained(ports.model)
        self._grids = Grids(self._config)
        self._given = GivenText(ports.model) if ports.carrying(Payload.TOKENS) else None
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
        self._markers = self._engine.renderer.tokenizer.convert_ids_to_tokens(self._media_ids)
        await self._take_control(ports, self._chat, THINKER.prefix)
        self._max_model_len = self._engine.model_config.max_model_len
        return Ready(
            max_model_len=self._max_model_len,
            commands=self._control.commands,
            loras=self._loras,
            speech=None if self._given is None else Speech(max_text=MAX_TEXT),
        )

    @property
    def _media_ids(self) -> list[int]:
        thinker = self._config.thinker_config
        return [thinker.audio_token_index, thinker.image_token_index, thinker.video_token_index]

    async def serve(self, opened: Opened) -> None:
        """Stream one answer, or read a given text; with audio, the talker gets its rows."""
        request_id, request = opened.id, opened.request
        if "input" in request.body:
            await self._read_out(request_id, request)
        elif is_about_tokens(request.body):
            await self._tell_tokens(request_id, request.body)
        else:
            await self._answer(request_id, request)

    async def _tell_tokens(self, request_id: str, body: Mapping[str, Any]) -> None:
        asked = body.get("tokenize", {})
        if "messages" in asked:
            check_markers(asked, self._markers)
        await self._tokenization.serve(request_id, body)

    async def _answer(self, request_id: str, request: Request) -> None:
        has_turns = "messages" in request.body  # else a prompt: text or ids, no media
        if has_turns:
            check_markers(request.body, self._markers)
        spoken = self._spoken(request_id, request)
        followers: list[Follower] = [*spoken]
        if self._ports.live(request, Payload.TEXT):
            followers.append(released := ReleasedText(request_id, request, self._ports))
            released.open()
        if has_turns and self._sinks:
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
            self._adapters.using(request.body.get("model")),
            aclosing(self._chat.stream(request_id, request.body, headers)) as chunks,
        ):
            async for chunk in chunks:
                is_last = not chunk["choices"]  # the usage chunk, always asked for
                self._send(request_id, chunk, followers, is_last)
                if not is_last:
                    await wait_for_room(self._ports, request_id, followers)

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

    def _spoken(self, request_id: str, request: Request) -> list[SpokenRows]:
        """The answer's way along each edge to a talker."""
        return [
            SpokenRows(request_id, request, edge, self._text_length)
            for edge in self._ports.live(request, Payload.TOKENS)
        ]

    def _text_length(self, token_ids: list[int]) -> int:
        tokenizer = self._engine.renderer.tokenizer
        return len(tokenizer.decode(token_ids, skip_special_tokens=True))

    def _rendered(
        self,
        request_id: str,
        request: Request,
        spoken: Sequence[SpokenRows],
        prompt: Mapping[str, Any],
    ) -> dict[str, Any]:
        self._ports.mark(request_id, "rendered")
        grids = self._grids.of(prompt)  # of every prompt: a later one may speak of its media
        for one in spoken:
            one.open(prompt["prompt_token_ids"], grids)
        edges = self._ports.live(request, Payload.ROWS)
        for edge in edges:
            if Payload.TOKENS not in edge.carries:  # nobody else announces the request there
                edge.open.send(Chunk(request_id, Open(request), last=True))
        return exporting(request_id, edges)

    async def _read_out(self, request_id: str, request: Request) -> None:
        """Let the engine read the text behind its prompt; the token that it samples is dropped."""
        assert self._given is not None  # without a talker the gateway refuses to speak
        body = request.body
        prompt_ids = self._given.prompt(body["instructions"])
        text_ids = self._given.tokens(body["input"])
        num_tokens = len(prompt_ids) + len(text_ids)
        self._check_length(num_tokens)
        for spoken in self._spoken(request_id, request):
            spoken.open_given(prompt_ids, len(text_ids))
        edges = self._ports.live(request, Payload.ROWS)
        params = SamplingParams(
            max_tokens=1,
            extra_args={"omnistage": exporting(request_id, edges)},
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=True,  # what is not computed has no rows
        )
        prompt = {"prompt_token_ids": [*prompt_ids, *text_ids]}
        headers = trace_headers(request, self._ports.name)
        async for _ in self._engine.generate(prompt, params, request_id, trace_headers=headers):
            pass
        usage = {"prompt_tokens": num_tokens, "completion_tokens": 0}
        chunk = {"choices": [], "usage": usage}
        self._ports.send_output(request_id, TextDelta(chunk), last=True)

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens >= self._max_model_len:
            raise RequestError(
                400,
                f"the text has {num_tokens} tokens with its instructions; the thinker takes "
                f"{self._max_model_len - 1}",
                param="input",
                code="context_length_exceeded",
            )


def exporting(request_id: str, edges: Sequence[Downstream]) -> dict[str, Any]:
    """What the bridge is told of a request; nothing, if nobody wants its rows."""
    if not edges:
        return {}
    return {"id": request_id, "to": [edge.target for edge in edges], "export_all": True}
