"""Answers to chats without HTTP: the typed pieces of what the stages make, as they make it."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, aclosing

from PIL import Image

from omnistage.server.common.fields import parse
from omnistage.server.common.trace import current_trace
from omnistage.server.runtime.request import AudioOutput, ImageOutput
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.chat.chunks import ChatChunk
from omnistage.server.tasks.chat.completion import Completion
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import RunningChat, run_chat, wants_images
from omnistage.server.tasks.image_chat import (
    ImageChatRequest,
    check_image_chat,
    image_fields_of,
    last_user_prompt,
)
from omnistage.server.tasks.image_task import answer_images
from omnistage.server.tasks.images.mixed import ImageFile, MixedChunks
from omnistage.server.tasks.pieces import (
    Answer,
    Choice,
    Picture,
    Piece,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    picture_of,
    stamps_of,
)
from omnistage.server.tasks.recordings import audio_of
from omnistage.server.tasks.service import Caller, LocalCaller, Service

NoteUnknown = Callable[[Sequence[str]], None]


def ignore_unknown(names: Sequence[str]) -> None:
    """Report no fields."""


async def answer_chat(
    service: Service,
    chat: ChatRequest,
    *,
    threads: Executor | None = None,
    on_unknown: NoteUnknown = ignore_unknown,
) -> AsyncGenerator[Piece, None]:
    """Answer a chat: its pieces as the stages make them, and its `Answer` last; raises ApiError.

    This is the door for callers without HTTP, such as the Python API or a session on a socket. The
    chat is a body of /v1/chat/completions: `parse(ChatRequest, body)`, with `messages` (text,
    `input_audio`, images and videos), `modalities`, `audio.voice`, `tools` and sampling. Pieces are
    `Text`, `Reasoning`, `ToolCall` (its arguments in parts), `Audio` (int16 samples [n] or [n, 2],
    with their rate) and `Picture`; `Answer` has why each choice finished, the usage, whole calls of
    tools, and all that was made.

    Close the generator, or cancel the task that reads it, to cancel the request at any moment. The
    request keeps its place in the server until then. A reader that takes nothing makes the stages
    wait; a deadline is the caller's. `threads`: does work that would hold the event loop up.
    `on_unknown`: called with the names of fields without effect, if there are any.
    """
    made = _drawn if wants_images(chat.modalities, service.runtime.graph) else _worded
    with ExitStack() as until:
        caller = LocalCaller(until, threads)
        async with aclosing(made(service, chat, caller, on_unknown)) as pieces:
            async for piece in pieces:
                yield piece


async def _drawn(
    service: Service, chat: ChatRequest, caller: Caller, on_unknown: NoteUnknown
) -> AsyncGenerator[Piece, None]:
    check_image_chat(chat, service.runtime.graph)
    prompt, media = last_user_prompt(chat.messages)
    fields = parse(ImageChatRequest, {**image_fields_of(chat), "prompt": prompt})
    on_unknown(fields.unknown)
    async with aclosing(answer_images(service, fields, caller, media)) as pieces:
        async for piece in pieces:
            yield piece


async def _worded(
    service: Service, chat: ChatRequest, caller: Caller, on_unknown: NoteUnknown
) -> AsyncGenerator[Piece, None]:
    running = await run_chat(service, chat, caller)
    on_unknown(running.unknown)
    words = Words(running)
    async with aclosing(running.outputs) as outputs:
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

    def __init__(self, running: RunningChat) -> None:
        self._running = running
        said = running.chunks()
        self.chunks = said if running.wish is None else MixedChunks(said)
        self.completion = Completion()
        self.samples: SampleFormat | None = None
        self._images: list[Image.Image] = []

    def draw(self, output: ImageOutput) -> Picture:
        """Return the image that a stage has made of the words."""
        assert isinstance(self.chunks, MixedChunks)
        self.chunks.chunks_of(ImageFile("", output.size, output.token_side))  # which counts it
        picture = Picture(picture_of(output), len(self._images))
        self._images.append(picture.image)
        return picture

    def add(self, chunk: ChatChunk) -> Iterator[Piece]:
        """Yield what a chunk brings."""
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
        """Return the whole, as the server would put it together."""
        completion, running = self.completion, self._running
        has_codes = running.request.message.return_codes
        whole = completion.to_speech(has_codes) if running.has_audio else completion.to_text()
        audio = whole["choices"][0]["message"].get("audio") if whole["choices"] else None
        pcm = audio["data"] if audio else b""
        return Answer(
            id=running.request.id,
            choices=tuple(map(choice_of, whole["choices"])) or (Choice(),),
            audio=audio_of(pcm, self.samples) if self.samples is not None else None,
            images=tuple(self._images),
            codes=tuple(map(tuple, audio.get("codes", ()))) if audio else (),
            usage=Usage.of(whole["usage"]),
            timeline=stamps_of(current_trace().timeline.to_list()),
        )


def choice_of(choice: ChatChunk) -> Choice:
    """Return a choice of a completion."""
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
    """Return a call of a tool, or a piece of one."""
    function = call.get("function") or {}
    name, arguments = function.get("name") or "", function.get("arguments") or ""
    return ToolCall(call.get("id") or "", name, arguments, number, index)
