"""Chats, from a body of /v1/chat/completions to the pieces of its answer."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from PIL import Image

from omnistage.server.chat.audio_history import AudioHistory
from omnistage.server.chat.chunks import (
    AnswerChunks,
    AnswerHead,
    ChatChunk,
    SpeechChunks,
    TextChunks,
)
from omnistage.server.chat.completion import Completion
from omnistage.server.chat.schema import ChatRequest
from omnistage.server.chat.translate import Translator
from omnistage.server.errors import invalid
from omnistage.server.http.fields import parse
from omnistage.server.images.mixed import FIELDS, ImageFile, MixedChunks, Wish
from omnistage.server.media.medium import media_of
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.offline.outputs import (
    Answer,
    Choice,
    Picture,
    Piece,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    audio_of,
    picture_of,
    stamps_of,
)
from omnistage.server.offline.pictures import made
from omnistage.server.runtime.request import AudioOutput, ImageOutput, Request
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.image_chat import (
    ImageChatRequest,
    check_image_chat,
    last_wish,
    said_of_images,
    wants_images,
)
from omnistage.server.trace import current_trace


async def chat(engine: Engine, fields: Mapping[str, Any]) -> Pieces:
    """Answer a conversation: with text, speech or images."""
    asked = parse(ChatRequest, await said(fields))
    if asked.stream is not None or asked.stream_options is not None:
        raise invalid("stream", "is of HTTP; use stream_chat")
    pieces = _images if wants_images(asked, engine.graph) else _words
    async with aclosing(pieces(engine, asked)) as answer:
        async for piece in answer:
            yield piece


async def _images(engine: Engine, asked: ChatRequest) -> AsyncGenerator[Piece, None]:
    check_image_chat(asked, engine.graph)
    prompt, media = last_wish(asked.messages)
    wish = parse(ImageChatRequest, {**said_of_images(asked), "prompt": prompt})
    warn_of(wish.unknown)
    async with aclosing(made(engine, wish, media, None)) as pieces:
        async for piece in pieces:
            yield piece


async def _words(engine: Engine, asked: ChatRequest) -> AsyncGenerator[Piece, None]:
    fleet = engine.runtime.fleet
    adapters = [lora.name for lora in fleet.loras]
    request = Translator(engine.graph, fleet.voices, AudioHistory(), adapters).request(asked)
    wish = Wish.of(asked) if "image" in request.outputs else None
    if wish is not None:
        request = replace(request, image=wish.body)
    warn_of([name for name in asked.unknown if wish is None or name not in FIELDS])
    model = request.body.get("model", engine.graph.served_name)
    words = Words(
        request, AnswerHead(request.id, model, bool(asked.return_token_ids)), asked.has_words
    )
    with engine.runtime.flights.admit(request.outputs) as ticket:
        media = await engine.media.load_all(list(media_of(request.body)))
        request = replace(request, media=media)
        async with aclosing(ticket.run(request)) as outputs:
            async for output in outputs:
                if isinstance(output, ImageOutput):
                    if output.pixels:
                        yield words.draw(output)
                    continue
                if isinstance(output, AudioOutput):
                    words.samples = output.samples
                for chunk in words.chunks.chunks_of(output):
                    for piece in words.add(chunk):
                        yield piece
    for chunk in words.chunks.finish():
        words.completion.add(chunk)
    yield words.answer()


class Words:
    """An answer of text or speech as far as it has come; its samples are those of the stage."""

    def __init__(self, request: Request, head: AnswerHead, has_words: bool) -> None:
        self._request = request
        self._has_audio = "audio" in request.outputs
        said: AnswerChunks = TextChunks(head)
        if self._has_audio:
            said = SpeechChunks(head, request.return_codes, has_words)
        self.chunks = MixedChunks(said) if "image" in request.outputs else said
        self.completion = Completion()
        self.samples: SampleFormat | None = None
        self._images: list[Image.Image] = []

    def draw(self, output: ImageOutput) -> Picture:
        """The image that a stage has made of the words."""
        assert isinstance(self.chunks, MixedChunks)
        self.chunks.chunks_of(ImageFile("", output.size))  # which counts it
        picture = Picture(picture_of(output), len(self._images))
        self._images.append(picture.image)
        return picture

    def add(self, chunk: ChatChunk) -> Iterator[Piece]:
        """What a chunk brings."""
        self.completion.add(chunk)
        for choice in chunk["choices"]:
            yield from self._pieces(choice["delta"], choice["index"])

    def _pieces(self, delta: ChatChunk, index: int) -> Iterator[Piece]:
        audio = delta.get("audio") or {}
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if thought:
            yield Reasoning(thought, index)
        text = delta.get("content") or audio.get("transcript")
        if text:
            yield Text(text, index)
        for call in delta.get("tool_calls", ()):
            yield call_of(call, call["index"], index)
        if audio.get("data") and self.samples is not None:
            yield audio_of(audio["data"], self.samples)

    def answer(self) -> Answer:
        """The whole, as the server would put it together."""
        completion = self.completion
        has_codes = self._request.return_codes
        whole = completion.to_speech(has_codes) if self._has_audio else completion.to_text()
        audio = whole["choices"][0]["message"].get("audio") if whole["choices"] else None
        pcm = audio["data"] if audio else b""
        return Answer(
            id=self._request.id,
            choices=tuple(map(choice_of, whole["choices"])) or (Choice(),),
            audio=audio_of(pcm, self.samples) if self.samples is not None else None,
            images=tuple(self._images),
            codes=tuple(map(tuple, audio.get("codes", ()))) if audio else (),
            usage=Usage.of(whole["usage"]),
            timeline=stamps_of(current_trace().timeline.to_list()),
        )


def choice_of(choice: ChatChunk) -> Choice:
    """A choice of a completion."""
    message = choice["message"]
    audio = message.get("audio") or {}
    calls = enumerate(message.get("tool_calls", ()))
    return Choice(
        text=message["content"] or audio.get("transcript", ""),
        finish_reason=choice["finish_reason"],
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
        tool_calls=tuple(call_of(call, number, choice["index"]) for number, call in calls),
        logprobs=choice["logprobs"],
        token_ids=tuple(choice.get("token_ids", ())),
    )


def call_of(call: ChatChunk, number: int, index: int) -> ToolCall:
    """A call of a tool, or a piece of one."""
    function = call.get("function") or {}
    name, arguments = function.get("name") or "", function.get("arguments") or ""
    return ToolCall(call.get("id") or "", name, arguments, number, index)
