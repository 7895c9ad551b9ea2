"""POST /tokenize and /detokenize, as vLLM's: the entry stage's tokenizer and template answer."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.endpoints.answers import TextOfTokens, TokensAnswer
from omnistage.server.endpoints.examples import ids_examples, token_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.errors import ApiError
from omnistage.server.http.beside_loop import beside_loop
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.served import check_model, made_by
from omnistage.server.http.state import held
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.runtime.request import Request, TokensOutput
from omnistage.server.runtime.ticket import Ticket
from omnistage.server.tasks.token_fields import DetokenizeRequest, TokenizeRequest
from omnistage.stage_configs.graph import StageGraph

OF_TOKENIZERS = ("text", "embedding")  # outputs of stages that have a tokenizer
Json = dict[str, Any]


def routes(gateway: Gateway) -> APIRouter:
    """POST /tokenize and /detokenize."""
    router = APIRouter(route_class=JsonRoute)
    graph, tokens = gateway.runtime.graph, Tokens(gateway)
    body = json_examples(token_examples(graph))
    about = described("Tokenize a text or a conversation", TokensAnswer, body=body)
    router.post("/tokenize", **about)(tokens.tokenize)
    body = json_examples(ids_examples(graph))
    about = described("Detokenize", TextOfTokens, body=body)
    router.post("/detokenize", **about)(tokens.detokenize)
    return router


@dataclass(frozen=True, slots=True)
class Tokens:
    """Asks the entry stage; no engine computes for it."""

    gateway: Gateway

    async def tokenize(self, asked: TokenizeRequest, http: HttpRequest) -> Response:
        """The tokens of a prompt, or those that a chat of these messages would begin with."""
        graph = self.gateway.runtime.graph
        body = await beside_loop(http, lambda: asked.to_body(graph))
        request, ticket = self._admit(asked.model, {"tokenize": body}, http)
        if "messages" in body:
            request = replace(request, media=await self.gateway.media.load(body, http))
        headers = warning_headers(await beside_loop(http, lambda: asked.unknown))
        making = self._tokens(request, ticket, bool(asked.return_token_strs))
        return await whole_answer(http, request.id, making, headers)

    async def detokenize(self, asked: DetokenizeRequest, http: HttpRequest) -> Response:
        """The text of tokens, with the special ones."""
        asked.check()
        body = {"detokenize": {"tokens": asked.tokens}}
        request, ticket = self._admit(asked.model, body, http)
        making = self._text(request, ticket)
        return await whole_answer(http, request.id, making, warning_headers(asked.unknown))

    def _admit(
        self, model: str | None, body: Mapping[str, Any], http: HttpRequest
    ) -> tuple[Request, Ticket]:
        graph = self.gateway.runtime.graph
        check_model(model, graph.served_names)
        request = Request(f"tokens-{uuid4().hex}", (_entry_output(graph),), body)
        return request, held(http, self.gateway.runtime.flights.admit(request.outputs))

    async def _tokens(self, request: Request, ticket: Ticket, has_strs: bool) -> Json:
        tokens: list[int] = []
        strs: list[str] = []
        async with aclosing(_pieces(request, ticket)) as pieces:
            async for piece in pieces:
                tokens += piece.token_ids
                strs += piece.token_strs or ()
        return {
            "count": len(tokens),
            "max_model_len": self._max_model_len(request) or 0,
            "tokens": tokens,
            "token_strs": strs if has_strs else None,
        }

    def _max_model_len(self, request: Request) -> int | None:
        runtime = self.gateway.runtime
        (entry,) = runtime.graph.entries(request.outputs)
        return runtime.fleet.one_of(entry).record.max_model_len

    async def _text(self, request: Request, ticket: Ticket) -> Json:
        async with aclosing(_pieces(request, ticket)) as pieces:
            return {"prompt": "".join([piece.text async for piece in pieces])}


async def _pieces(request: Request, ticket: Ticket) -> AsyncGenerator[TokensOutput, None]:
    async with aclosing(ticket.run(request)) as outputs:
        async for output in outputs:
            assert isinstance(output, TokensOutput)
            yield output


def _entry_output(graph: StageGraph) -> str:
    """The output under whose name an entry stage tells tokens; ApiError if none has any."""
    for name in OF_TOKENIZERS:
        if name in graph.outputs and graph.outputs[name] == graph.entry_of(name):
            return name
    message = f"This model has no tokenizer to ask; it makes {made_by(graph.outputs)}."
    raise ApiError(400, message, code="unsupported_model")
