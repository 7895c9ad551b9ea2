"""Chats: from the fields of a body to what the stages make, and to the pieces of an answer.

`answer_chat` yields the typed pieces of an answer. `run_chat` yields the outputs of the stages, for
a door that shapes them itself.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace

from PIL import Image

from omnistage.server.common.fields import parse
from omnistage.server.common.trace import current_trace
from omnistage.server.media.medium import media_of
from omnistage.server.runtime.request import AudioOutput, GraphRequest, ImageOutput, Outputs
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.chat.chunks import (
    AnswerChunks,
    AnswerHead,
    ChatChunk,
    SpeechChunks,
    TextChunks,
)
from omnistage.server.tasks.chat.completion import Completion
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat.translate import Translator
from omnistage.server.tasks.image_chat import (
    ImageChatRequest,
    check_image_chat,
    image_fields_of,
    last_user_prompt,
)
from omnistage.server.tasks.image_task import answer_images
from omnistage.server.tasks.images.mixed import FIELDS, ImageFile, MixedChunks, Wish
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
from omnistage.server.tasks.service import Caller, LocalCaller, Service, send
from omnistage.stage_configs.graph import StageGraph

NoteUnknown = Callable[[Sequence[str]], None]


def ignore_unknown(names: Sequence[str]) -> None:
    """Report no fields."""


@dataclass(frozen=True, slots=True)
class RunningChat:
    """A chat that was sent to the stages; closing `outputs` cancels it."""

    chat: ChatRequest
    request: GraphRequest
    model: str  # its name in answers
    wish: Wish | None  # the image that a stage draws of the words, if one does
    outputs: Outputs

    @property
    def has_audio(self) -> bool:
        """Returns whether the answer is spoken."""
        return "audio" in self.request.outputs

    @property
    def unknown(self) -> list[str]:
        """Fields without effect; those of an image have one where there is an image."""
        names = self.chat.unknown
        return names if self.wish is None else [name for name in names if name not in FIELDS]

    def chunks(self) -> AnswerChunks:
        """Return a maker of OpenAI's chunks of the words and the speech."""
        head = AnswerHead(self.request.id, self.model, bool(self.chat.return_token_ids))
        if self.has_audio:
            return SpeechChunks(head, self.request.message.return_codes, self.chat.has_words)
        return TextChunks(head)


async def run_chat(
    service: Service,
    chat: ChatRequest,
    caller: Caller,
    request_id: str | None = None,
    keeps_rows: bool = False,
) -> RunningChat:
    """Check a chat of words or speech, load its media and send it; raises ApiError.

    The request is on its way to the stages when this returns. It ends when its outputs are closed,
    or with `caller.until`. An answer of images alone is no chat of words: `wants_images`.
    `keeps_rows`: a spoken chat that goes on with this one's prompt will find all of it read.
    """
    request, wish = await caller.compute(lambda: _translated(service, chat))
    if request_id is not None:
        request = replace(request, id=request_id)
    if keeps_rows:
        request = request.changed(keeps_rows=True)
    request, outputs = await send(service, request, caller, media_of(request.fields))
    model = request.fields.get("model", service.runtime.graph.served_name)
    return RunningChat(chat, request, model, wish, outputs)


def _translated(service: Service, chat: ChatRequest) -> tuple[GraphRequest, Wish | None]:
    graph, fleet = service.runtime.graph, service.runtime.fleet
    adapters = [lora.name for lora in fleet.loras]
    request = Translator(graph, fleet.voices, service.history, adapters).request(chat)
    if "image" not in request.outputs:
        return request, None
    wish = Wish.of(chat)
    return request.changed(image=wish.body), wish


def wants_images(chat: ChatRequest, graph: StageGraph) -> bool:
    """Returns whether nothing but images is asked for; where the graph has no text, by saying
    nothing.
    """
    if chat.modalities is None:
        return "image" in graph.outputs and "text" not in graph.outputs
    if "image" not in chat.modalities or "image" not in graph.outputs:
        return "image" in chat.modalities
    is_beside_text = "text" in chat.modalities and graph.waits_for("image")
    return not (graph.writers("image") or is_beside_text)


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
    made = _drawn if wants_images(chat, service.runtime.graph) else _worded
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
