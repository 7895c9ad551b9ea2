"""POST /tokenize and /detokenize, as vLLM's: the entry stage's tokenizer and template answer."""

from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.answers import TextOfTokens, TokensAnswer
from omnistage.server.endpoints.examples import ids_examples, token_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.request import HttpCaller, JsonRoute
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.tasks.chat.token_fields import DetokenizeRequest, TokenizeRequest
from omnistage.server.tasks.tokens import RunningTokens, run_detokenize, run_tokenize
from omnistage.stage_configs.json_types import Json


def routes(gateway: Gateway) -> APIRouter:
    """POST /tokenize and /detokenize."""
    router = APIRouter(route_class=JsonRoute)
    graph, tokens = gateway.runtime.graph, TokenRequests(gateway)
    body = json_examples(token_examples(graph))
    about = described("Tokenize a text or a conversation", TokensAnswer, body=body)
    router.post("/tokenize", **about)(tokens.tokenize)
    body = json_examples(ids_examples(graph))
    about = described("Detokenize", TextOfTokens, body=body)
    router.post("/detokenize", **about)(tokens.detokenize)
    return router


@dataclass(frozen=True, slots=True)
class TokenRequests:
    """Answers with what the entry stage's tokenizer makes."""

    gateway: Gateway

    async def tokenize(self, asked: TokenizeRequest, http: HttpRequest) -> Response:
        """The tokens of a prompt, or those that a chat of these messages would begin with."""
        caller = HttpCaller(http)
        running = await run_tokenize(self.gateway, asked, caller)
        headers = warning_headers(await caller.compute(lambda: asked.unknown))
        making = self._tokens(running, bool(asked.return_token_strs))
        return await whole_answer(http, running.request.id, making, headers)

    async def detokenize(self, asked: DetokenizeRequest, http: HttpRequest) -> Response:
        """The text of tokens, with the special ones."""
        running = await run_detokenize(self.gateway, asked, HttpCaller(http))
        headers = warning_headers(asked.unknown)
        return await whole_answer(http, running.request.id, self._text(running), headers)

    async def _tokens(self, running: RunningTokens, has_strs: bool) -> Json:
        tokens = await running.tokens()
        return {
            "count": len(tokens.ids),
            "max_model_len": tokens.max_model_len or 0,
            "tokens": tokens.ids,
            "token_strs": tokens.strs if has_strs else None,
        }

    async def _text(self, running: RunningTokens) -> Json:
        return {"prompt": await running.text()}
