"""POST /v1/chat/completions."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.audio.encoder import MakeEncoder, make_encoder
from omnistage.server.audio.encoding import encoded
from omnistage.server.chat.audio_history import AudioHistory, SpokenAnswer
from omnistage.server.chat.chunks import (
    AnswerChunks,
    AnswerHead,
    ChatChunk,
    SpeechChunks,
    TextChunks,
    with_usage,
)
from omnistage.server.chat.completion import Completion
from omnistage.server.chat.schema import AudioOptions, ChatRequest
from omnistage.server.chat.translate import Translator
from omnistage.server.endpoints.answers import ChatCompletion
from omnistage.server.endpoints.examples import chat_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.image_chat import ImageChat
from omnistage.server.http.beside_loop import beside_loop
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.sse import EventStream
from omnistage.server.http.state import held
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.images.answer import MAX_UNSENT_BYTES
from omnistage.server.images.mixed import FIELDS, MixedChunks, Wish, with_files
from omnistage.server.runtime.request import Outputs, Request
from omnistage.server.tasks.image_chat import wants_images
from omnistage.server.trace import (
    FIRST_AUDIO,
    FIRST_IMAGE,
    FIRST_TEXT,
    GATEWAY,
    Timeline,
    current_trace,
)

T = TypeVar("T")


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
    history: AudioHistory = field(default_factory=AudioHistory)

    async def create(self, chat: ChatRequest, http: HttpRequest) -> Response:
        """Answer with text, speech or images: whole, or as events while they are made."""
        if wants_images(chat, self.gateway.runtime.graph):
            images = ImageChat(self.gateway)
            return await images.create(chat, http)
        answer = await beside_loop(http, lambda: self._answer(chat))
        ticket = held(http, self.gateway.runtime.flights.admit(answer.request.outputs))
        media = await self.gateway.media.load(answer.request.body, http)
        headers = warning_headers(await beside_loop(http, lambda: unknown(chat, answer)))
        # Sent before any task is made: of many that come at once, stages begin with the first.
        made = ticket.run(replace(answer.request, media=media))
        if chat.stream:
            events = with_usage(self._chunks(answer, made), answer.has_usage)
            unsent = self.gateway.max_unsent_bytes
            if answer.wish is not None:  # an image is one event
                unsent = max(unsent, MAX_UNSENT_BYTES)
            return EventStream(events, self.gateway.keep_alive_s, unsent, headers)
        return await whole_answer(http, answer.request.id, self._collect(answer, made), headers)

    def _answer(self, chat: ChatRequest) -> "Answer":
        graph, fleet = self.gateway.runtime.graph, self.gateway.runtime.fleet
        adapters = [lora.name for lora in fleet.loras]
        request = Translator(graph, fleet.voices, self.history, adapters).request(chat)
        model = request.body.get("model", graph.served_name)
        head = AnswerHead(request.id, model, bool(chat.return_token_ids))
        has_audio = "audio" in request.outputs
        form = (chat.audio or AudioOptions()).format
        wish = Wish.of(chat) if "image" in request.outputs else None
        return Answer(
            request if wish is None else replace(request, image=wish.body),
            SpeechChunks(head, request.return_codes, chat.has_words)
            if has_audio
            else TextChunks(head),
            wish,
            partial(make_encoder, form, bool(chat.stream)) if has_audio else None,
            chat.has_usage,
            bool(chat.return_timeline),
        )

    async def _chunks(self, answer: "Answer", made: Outputs) -> AsyncGenerator[ChatChunk, None]:
        timeline = current_trace().timeline
        if answer.make_encoder is not None:
            made = encoded(made, answer.make_encoder)
        chunks: AnswerChunks | MixedChunks = answer.chunks
        if answer.wish is None:
            told = _told(made, answer.chunks.chunks_of)
        else:
            chunks = mixed = MixedChunks(answer.chunks)
            told = _told(with_files(made, answer.wish.encoding), mixed.chunks_of)
        async with aclosing(told):
            async for chunk in told:
                yield chunk
                _mark_first(timeline, chunk)
        speech = answer.chunks
        if isinstance(speech, SpeechChunks):
            spoken = SpokenAnswer(speech.transcript, speech.expires_at)
            self.history.remember(speech.audio_id, spoken)
        if answer.has_timeline:
            yield chunks.head.chunk([], timeline=timeline.to_list())
        for chunk in chunks.finish():
            yield chunk

    async def _collect(self, answer: "Answer", made: Outputs) -> ChatChunk:
        completion = Completion()
        async with aclosing(self._chunks(answer, made)) as chunks:
            async for chunk in chunks:
                completion.add(chunk)
        if isinstance(answer.chunks, SpeechChunks):
            return completion.to_speech(answer.request.return_codes)
        return completion.to_text()


@dataclass(frozen=True, slots=True)
class Answer:
    """One request with the maker of its chunks and the shape its client wants."""

    request: Request
    chunks: AnswerChunks
    wish: Wish | None  # of its image, if it has one
    make_encoder: MakeEncoder | None
    has_usage: bool
    has_timeline: bool


def unknown(chat: ChatRequest, answer: Answer) -> list[str]:
    """Fields without effect; those of an image have one where there is an image."""
    names = chat.unknown
    return names if answer.wish is None else [name for name in names if name not in FIELDS]


async def _told(
    outputs: AsyncGenerator[T, None], chunks_of: Callable[[T], list[ChatChunk]]
) -> AsyncGenerator[ChatChunk, None]:
    """The chunks that outputs add, one after another."""
    async with aclosing(outputs):
        async for output in outputs:
            for chunk in chunks_of(output):
                yield chunk


def _mark_first(timeline: Timeline, chunk: ChatChunk) -> None:
    """Stamp the first text, audio and image once they have been handed on."""
    for choice in chunk["choices"]:
        audio = choice["delta"].get("audio", {})
        if "data" in audio:
            timeline.mark(GATEWAY, FIRST_AUDIO)
        if "transcript" in audio or choice["delta"].get("content"):
            timeline.mark(GATEWAY, FIRST_TEXT)
        if "images" in choice["delta"]:
            timeline.mark(GATEWAY, FIRST_IMAGE)
