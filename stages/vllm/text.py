"""A stage that is one text model in vLLM; its words and its hidden states go along its edges."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial

import numpy as np

from omnistage.connectors.chunk import Tensor
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.messages.body import Detokenize, Tokenize
from omnistage.stages.messages.edge import Open
from omnistage.stages.messages.to_gateway import Ready, TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.answers.chat import ChatServing
from omnistage.stages.vllm.answers.followers import wait_for_room
from omnistage.stages.vllm.answers.released_text import ReleasedText
from omnistage.stages.vllm.answers.rendered import RenderedLLM
from omnistage.stages.vllm.answers.tokenization import Tokenization
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.engine.engine import engine_of_all_rows, make_engine
from omnistage.stages.vllm.engine.warm_up import warm_up_text
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.grammars.grammars import Grammars
from omnistage.stages.vllm.media.media import reading_of, received
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts

LOAD_FORMATS = ("auto", "dummy")  # those of ours, which set the hook


class TextStage(EngineStage):
    """One AsyncLLM and vLLM's chat serving over it."""

    _engine: RenderedLLM

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._sinks = sinks_of(ports.downstream, Payload.ROWS)
        if self._sinks:
            check_edges(ports)

    async def start(self) -> Ready:
        """Load, and answer one request."""
        ports = self._ports
        self._engine = self._make_engine()
        self._engine.rendered = {}
        self._engine.grammars = Grammars()
        self._chat = ChatServing(self._engine, ports.model, ports.options)
        self._tokenization = Tokenization(self._engine, ports)
        await warm_up_text(self._engine, self._chat)
        await self._take_control(ports, self._chat)
        self._max_model_len: int = self._engine.model_config.max_model_len
        commands = self._control.commands
        return Ready(
            max_model_len=self._max_model_len,
            commands=commands,
            loras=self._loras,
            reading=reading_of(self._engine),
        )

    def _make_engine(self) -> RenderedLLM:
        ports, engine, bridge, gib = self._ports, self._ports.engine, None, 0.0
        if self._sinks:
            engine, gib = engine_of_all_rows(ports)
            bridge = BridgeConfig(
                HIDDEN_STATES, sinks=self._sinks, ledger=ports.ledger, row_cache_gib=gib
            )
        made = make_engine(RenderedLLM, ports.model, engine, bridge, stage=ports.name)
        made.has_row_cache = gib > 0
        return made

    async def serve(self, opened: Opened) -> None:
        """Stream one answer; its last chunk is the usage chunk."""
        with received(opened.media):
            await self._serve(opened)

    async def _serve(self, opened: Opened) -> None:
        request_id, request = opened.id, opened.request
        if isinstance(request.body, Tokenize | Detokenize):
            await self._tokenization.serve(request_id, request.body)
            return
        edges = self._ports.live(request, Payload.ROWS)
        if edges:
            refuse_several(request.fields)
            self._engine.rendered[request_id] = partial(announce, opened, edges)
        try:
            await self._answer(request_id, request)
        finally:
            self._engine.rendered.pop(request_id, None)

    async def _answer(self, request_id: str, request: Request) -> None:
        headers = trace_headers(request, self._ports.name)
        released = ReleasedText(request_id, request, self._ports)
        released.open()
        async with (
            self._adapters.using(request.fields.get("model")),
            aclosing(self._chat.stream(request_id, request.fields, headers)) as chunks,
        ):
            async for chunk in chunks:
                self._ports.mark(request_id, "first_token")
                last = not chunk["choices"]
                released.add(chunk)
                if last:
                    released.finish()
                self._ports.send_output(request_id, TextDelta(chunk), last=last)
                if not last:
                    await wait_for_room(self._ports, request_id, [released])


def announce(
    opened: Opened, edges: Sequence[Downstream], prompt: Mapping[str, object]
) -> RequestOptions:
    """Say downstream that a request comes, with its prompt's ids, before the engine has it."""
    token_ids = Tensor.from_numpy(np.asarray(prompt["prompt_token_ids"], np.int32))
    announced = Open(opened.request)
    for edge in edges:
        edge.announce(opened.id, announced, {"prompt": token_ids})
    to = [edge.target for edge in edges]
    return RequestOptions(opened.id, to, exported=ExportedRows())


def check_edges(ports: StagePorts) -> None:
    """Raise ValueError for what an edge with a text model's rows cannot do."""
    for edge in ports.carrying(Payload.ROWS):
        if not edge.all_hidden_states:
            raise ValueError(
                f"the edge from {ports.name} to {edge.target} carries nothing: "
                "set hidden_states: all"
            )
    load_format = ports.engine.get("load_format", "auto")
    if load_format not in LOAD_FORMATS:
        allowed = " or ".join(LOAD_FORMATS)
        raise ValueError(f"stage {ports.name} has an edge: load_format is {allowed}")


def refuse_several(body: JsonMap) -> None:
    """Refuses several answers, whose rows would be mixed up: they have one request's name."""
    if (body.get("n") or 1) > 1:
        raise RequestError(400, "must be 1 for this model's outputs", param="n")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        raise RequestError(400, "must be one text for this model's outputs", param="prompt")
