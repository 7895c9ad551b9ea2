"""POST /invocations, by which SageMaker asks a server, as vLLM's: a body says what it is for."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import RequestFields, parse
from omnistage.server.endpoints.answers import ChatCompletion, Embeddings, TextCompletion
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.text.chat import ChatCompletions
from omnistage.server.endpoints.text.embeddings import EmbeddingAnswers
from omnistage.server.endpoints.text.text_completions import TextCompletions
from omnistage.server.http.openapi import EVENTS, described
from omnistage.server.http.request import JsonRoute
from omnistage.server.tasks.chat.completion_fields import CompletionRequest
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.embeddings import EmbeddingRequest
from omnistage.stage_configs.json_types import Json

Create = Callable[[Any, HttpRequest], Awaitable[Response]]


def routes(gateway: Gateway) -> APIRouter:
    """Make POST /invocations."""
    router = APIRouter(route_class=JsonRoute)
    # By the field that tells one from the others, in vLLM's order.
    endpoints: Mapping[str, tuple[type[RequestFields], Create]] = {
        "messages": (ChatRequest, ChatCompletions(gateway).create),
        "prompt": (CompletionRequest, TextCompletions(gateway).create),
        "input": (EmbeddingRequest, EmbeddingAnswers(gateway).create),
    }

    answers = ChatCompletion | TextCompletion | Embeddings
    about = described("Create by a body's fields", answers, (EVENTS,), body={})

    @router.post("/invocations", **about)
    async def invoke(body: Json, http: HttpRequest) -> Response:
        """Answer as chats, completions or embeddings: `messages`, `prompt` or `input` tells it."""
        for name, (kind, create) in endpoints.items():
            if name in body:
                return await create(parse(kind, body), http)
        raise invalid("messages", "or prompt or input must be given")

    return router
