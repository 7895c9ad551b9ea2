"""POST /v1/chat/completions."""

from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.answers import ChatCompletion
from omnistage.server.endpoints.examples import chat_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.text.chat_chunks import ChatChunks
from omnistage.server.endpoints.text.image_chat import ImageChat
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.request import HttpCaller, JsonRoute
from omnistage.server.http.sse import EventStream
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.tasks.chat.chunks import with_usage
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import run_chat, wants_images
from omnistage.server.tasks.images.answer import MAX_UNSENT_BYTES


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/chat/completions."""
    router = APIRouter(route_class=JsonRoute)
    body = json_examples(chat_examples(gateway.runtime.graph))
    about = described("Create a chat completion", ChatCompletion, (EVENTS,), body=body)
    router.post("/v1/chat/completions", **about)(ChatCompletions(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    """Answers chat requests by running them through the graph."""

    gateway: Gateway

    async def create(self, chat: ChatRequest, http: HttpRequest) -> Response:
        """Answer with text, speech or images: whole, or as events while they are made."""
        if wants_images(chat.modalities, self.gateway.runtime.graph):
            return await ImageChat(self.gateway).create(chat, http)
        caller = HttpCaller(http)
        running = await run_chat(self.gateway, chat, caller)
        headers = warning_headers(await caller.compute(lambda: running.unknown))
        chunks = ChatChunks(running, self.gateway.history)
        if not chat.stream:
            return await whole_answer(http, running.request.id, chunks.whole(), headers)
        events = with_usage(chunks.all(), chat.has_usage)
        unsent = self.gateway.options.max_unsent_bytes
        if running.wish is not None:  # an image is one event
            unsent = max(unsent, MAX_UNSENT_BYTES)
        return EventStream(events, self.gateway.options.keep_alive_s, unsent, headers)
