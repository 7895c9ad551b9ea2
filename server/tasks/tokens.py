"""The tokens of a prompt or a chat, and the text of tokens: the entry stage's tokenizer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from uuid import uuid4

from omnistage.server.common.errors import ApiError
from omnistage.server.common.served import check_model, made_by
from omnistage.server.runtime.request import GraphRequest, Outputs, TokensOutput
from omnistage.server.tasks.chat.media_options import media_of
from omnistage.server.tasks.chat.token_fields import DetokenizeRequest, TokenizeRequest
from omnistage.server.tasks.service import Caller, Service, send
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.body import AnyBody, Detokenize, Tokenize
from omnistage.stages.messages.to_stage import Request

OF_TOKENIZERS = ("text", "embedding")  # outputs of stages that have a tokenizer


@dataclass(slots=True)
class Tokens:
    """The tokens of one prompt; `strs` is empty unless they were wanted."""

    max_model_len: int | None
    ids: list[int] = field(default_factory=list)
    strs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunningTokens:
    """A request to a tokenizer that was sent; no engine computes for it."""

    service: Service
    request: GraphRequest
    outputs: Outputs

    async def tokens(self) -> Tokens:
        """Collect the tokens; raises ApiError."""
        runtime = self.service.runtime
        (entry,) = runtime.graph.entries(self.request.message.outputs)
        found = Tokens(runtime.fleet.one_of(entry).record.max_model_len)
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                found.ids += piece.token_ids
                found.strs += piece.token_strs or ()
        return found

    async def text(self) -> str:
        """Collect the text; raises ApiError."""
        async with aclosing(self._pieces()) as pieces:
            return "".join([piece.text async for piece in pieces])

    async def _pieces(self) -> AsyncGenerator[TokensOutput, None]:
        async with aclosing(self.outputs) as outputs:
            async for output in outputs:
                assert isinstance(output, TokensOutput)
                yield output


async def run_tokenize(service: Service, fields: TokenizeRequest, caller: Caller) -> RunningTokens:
    """Send a prompt, or a chat with its media; raises ApiError."""
    body = await caller.compute(lambda: fields.to_body(service.runtime.graph))
    request = _request(service, fields.model, Tokenize(body))
    media = media_of(body) if "messages" in body else ()
    return RunningTokens(service, *await send(service, request, caller, media))


async def run_detokenize(
    service: Service, fields: DetokenizeRequest, caller: Caller
) -> RunningTokens:
    """Send tokens whose text is wanted, with the special ones; raises ApiError."""
    fields.check()
    request = _request(service, fields.model, Detokenize(fields.tokens))
    return RunningTokens(service, *await send(service, request, caller))


def _request(service: Service, model: str | None, body: AnyBody) -> GraphRequest:
    graph = service.runtime.graph
    adapters = [lora.name for lora in service.runtime.fleet.loras]  # with their model's tokenizer
    check_model(model, graph.served_names, adapters)
    message = Request(body, [_entry_output(graph)])
    return GraphRequest(f"tokens-{uuid4().hex}", message)


def _entry_output(graph: StageGraph) -> str:
    """Return the output under which an entry stage sends tokens; ApiError if none has any."""
    for name in OF_TOKENIZERS:
        if name in graph.outputs and graph.outputs[name] == graph.entry_of(name):
            return name
    message = f"This model has no tokenizer to ask; it makes {made_by(graph.outputs)}."
    raise ApiError(400, message, code="unsupported_model")
