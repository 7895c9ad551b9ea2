"""Stages that answer from a script, in this process, over the channels of real ones."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Connector
from omnistage.stage_configs.replicas import stage_of
from omnistage.stage_configs.work import WorkBound
from omnistage.stages.messages.body import (
    AnyBody,
    Detokenize,
    Draw,
    Embed,
    GivenText,
    Tokenize,
    Transcribe,
    WithFields,
)
from omnistage.stages.messages.to_gateway import (
    ABOUT_ITSELF,
    Alive,
    CommandResult,
    Compiling,
    Embedding,
    Failed,
    ImagePixels,
    InputTokens,
    Lora,
    Marks,
    NumChannels,
    Output,
    Reading,
    Ready,
    Sound,
    Speech,
    Status,
    Step,
    TextDelta,
    Tokenized,
    TranscriptDelta,
)
from omnistage.stages.messages.to_stage import (
    TO_STAGE,
    Cancel,
    Command,
    MediumPiece,
    MoreText,
    Request,
    Stop,
    ToStage,
)

SAMPLES_PER_FRAME = 480
SPEAKERS = ["chelsie", "ethan"]
WORDS = ["Hel", "lo", " there"]
FRAMES = [2, 3]
LENGTHS = {"thinker": 128, "embedding": 128, "talker": 8192}
STEPS = 4
MAX_PIXELS = 1024 * 1024
ALIVE_INTERVAL_S = 0.2


def text_of(body: AnyBody | None) -> str:
    """The text to be spoken, a prompt, that of a transcript, or the last message: the script."""
    if isinstance(body, GivenText):
        return body.text
    assert isinstance(body, WithFields)
    if "prompt" in body.fields:
        return str(body.fields["prompt"])
    content = body.fields["messages"][-1].get("content", "")
    text = content if isinstance(content, str) else content[-1].get("text", "")
    return str(text.rpartition("before it: ")[2])


# From stage, command and arguments to an answer; without one the stage says nothing.
Obey = Callable[[str, str, Mapping[str, Any]], CommandResult | None]
# What a fake stage sends: its tensors, and whether it is the last.
Said = tuple[Output | InputTokens | Failed, Mapping[str, Tensor], bool]


def obey(stage: str, command: str, arguments: Mapping[str, Any]) -> CommandResult:
    """As a stage that does all it is told."""
    if command in ("sleep", "wake", "load_weights"):
        return CommandResult({"asleep": ["weights"] if command == "sleep" else []})
    return CommandResult(dict(arguments))


class FakeGraph:
    """Launches fake stages and lets a test see and disturb them."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.stages: dict[str, FakeStage] = {}
        self.is_loading: set[str] = set()
        self.unlaunchable: set[str] = set()
        self.launched: list[str] = []
        self.commands = dict.fromkeys(("sleep", "wake", "add_lora", "list_loras"), "")
        self.loras: list[Lora] | None = None
        self.obey: Obey = obey
        self.sample_rate_hz: int | None = 24_000
        self.num_channels: NumChannels = 1
        self.speakers: list[str] = SPEAKERS
        self.speech: Speech | None = None  # of the entry
        self.reading = Reading(16_000, takes_video=True, sampler="qwen2_vl")
        self.texts: dict[str, list[str]] = {}  # what followed the text of a request
        self.whole: set[str] = set()  # requests whose text is whole
        self._waiting: list[asyncio.Future[None]] = []

    def launch(self, name: str, _: Path) -> "FakeStage":
        """As a StageLauncher."""
        if name in self.unlaunchable:
            raise BlockingIOError("no more processes")
        kinds = {
            "thinker": FakeThinker,
            "transcriber": FakeTranscriber,
            "talker": FakeTalker,
            "embedding": FakeEmbedding,
            "code2wav": FakeCode2Wav,
            "dit": FakeDit,
            "camera": FakeCamera,
            "studio": FakeStudio,
            "restyler": FakeRestyler,
            "narrator": FakeNarrator,
            "animator": FakeAnimator,
            "writer": FakeWriter,
            "synth": FakeSynth,
        }
        kind = kinds.get(stage_of(name), FakeStage)
        self.stages[name] = kind(name, self._connector, self)
        self.launched.append(name)
        return self.stages[name]

    async def pieces(self, request_id: str, body: GivenText) -> AsyncIterator[str]:
        """A text as it comes."""
        yield body.text
        num_given = 0
        while body.is_open:
            pieces = self.texts.get(request_id, [])
            for piece in pieces[num_given:]:
                num_given += 1
                yield piece
            if request_id in self.whole and num_given == len(self.texts[request_id]):
                return
            await asyncio.sleep(0.001)

    async def told_to_go_on(self) -> None:
        """Wait for a test, as an answer that "wait" asks for and each further word of "breathe"."""
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    @property
    def num_waiting(self) -> int:
        """How many answers wait for a test."""
        return sum(not one.done() for one in self._waiting)

    def go_on(self) -> None:
        """Let those go on that wait now."""
        for one in self._waiting:
            if not one.done():
                one.set_result(None)
        self._waiting.clear()

    def on_path(self, stage: str, request: Request) -> "FakeStage":
        """The replica of a stage that a request goes to."""
        return next(self.stages[name] for name in request.path if stage_of(name) == stage)

    @property
    def running(self) -> set[str]:
        """Requests that some stage still has."""
        return {request for stage in self.stages.values() for request in stage.tasks}


class FakeStage:
    """One stage: takes requests and cancels, tells its status."""

    work: ClassVar[WorkBound] = WorkBound()  # what a request may ask it for
    reading: ClassVar[Reading | None] = None  # None: that of the graph
    makes_audio: ClassVar[bool] = False

    def __init__(self, name: str, connector: Connector, graph: FakeGraph) -> None:
        self.name = name
        self.graph = graph
        self.requests = connector.receiver(f"gateway.{name}", TO_STAGE)
        self.outputs = connector.sender(f"{name}.gateway")
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.seen: list[Chunk[ToStage]] = []
        self.opened: list[Chunk[Request]] = []
        self.cancelled: list[str] = []
        self.num_sent = 0
        self.num_nan_steps = 0
        self.progress: Iterator[int] | None = None  # what it tells, if it computes
        self.compiles = False
        self.on_stop: Callable[[], None] = lambda: None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # StageHandle

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self.requests.fileno(), self._drain)
        loop.add_reader(self.outputs.fileno(), self.outputs.flush)
        if self.name not in self.graph.is_loading:
            self.become_ready()
        self._living = asyncio.create_task(self._live())
        self._drain()

    async def wait(self) -> str:
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> None:
        self.die("stop")
        await asyncio.gather(self._living, *self.tasks.values(), return_exceptions=True)
        self.requests.close()
        self.outputs.close()

    # What tests do to it

    def become_ready(self) -> None:
        ready = Ready(
            seconds=0.1,
            speakers=self.graph.speakers if stage_of(self.name) == "talker" else [],
            sample_rate_hz=self.graph.sample_rate_hz if self.makes_audio else None,
            num_channels=self.graph.num_channels,
            max_model_len=LENGTHS.get(stage_of(self.name)),
            commands=self.graph.commands,
            work=self.work,
            loras=self.graph.loras,
            speech=self.graph.speech,
            reading=self.graph.reading if self.reading is None else self.reading,
        )
        self.outputs.send(Chunk(ABOUT_ITSELF, ready))

    def die(self, how: str) -> None:
        if not self._ended.done():
            self._ended.set_result(how)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.requests.fileno())
            loop.remove_reader(self.outputs.fileno())
            for task in (self._living, *self.tasks.values()):
                task.cancel()

    def kill(self) -> None:
        self.die("killed")

    def freeze(self) -> None:
        """Show no sign of life any more."""
        self._living.cancel()

    def stop_reading(self) -> None:
        """Take nothing from the channels any more."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.requests.fileno())
        loop.remove_reader(self.outputs.fileno())

    async def _live(self) -> None:
        while True:
            sign = Compiling() if self.compiles else Alive()
            self.outputs.send(Chunk(ABOUT_ITSELF, sign))
            if self.progress is not None:
                self._tell()
            await asyncio.sleep(ALIVE_INTERVAL_S)

    # The channel protocol

    def _drain(self) -> None:
        while (chunk := self.requests.receive()) is not None:
            self.requests.grant(chunk.request_id)
            self.seen.append(chunk)
            message = chunk.message
            if isinstance(message, Cancel):
                self.cancelled.append(chunk.request_id)
                if chunk.request_id in self.tasks:
                    self.tasks[chunk.request_id].cancel()
                self.outputs.forget(chunk.request_id)
            elif isinstance(message, Stop):
                self.on_stop()
            elif isinstance(message, Request):
                self.opened.append(Chunk(chunk.request_id, message, 0, chunk.tensors))
                self.begin(chunk.request_id, message)
            elif isinstance(message, MoreText):
                self.graph.texts.setdefault(chunk.request_id, []).append(message.text)
                self.graph.whole |= {chunk.request_id} if chunk.last else set()
            elif isinstance(message, Command):
                answer = self.graph.obey(self.name, message.command, message.arguments)
                if answer is not None:
                    self.outputs.send(Chunk(chunk.request_id, answer, last=True))

    @property
    def last_request(self) -> Request:
        """The last that came, but for histories that are read ahead of a spoken answer."""
        return next(one.message for one in reversed(self.opened) if not one.message.keeps_rows)

    @property
    def last_body(self) -> dict[str, Any]:
        return self.last_request.fields

    def begin(self, request_id: str, request: Request) -> None:
        """Serve one request."""
        task = asyncio.get_running_loop().create_task(self._serve(request_id, request))
        self.tasks[request_id] = task
        task.add_done_callback(lambda _: self._end(request_id))  # also if it never began
        self._tell()

    def _end(self, request_id: str) -> None:
        del self.tasks[request_id]
        if not self._ended.done():
            self._tell()

    async def _serve(self, request_id: str, request: Request) -> None:
        marks = {"received": time.monotonic_ns()}
        async for message, tensors, last in self.answer(request_id, request):
            await self._credit(request_id)
            if marks:
                marks["first_output"] = time.monotonic_ns()
                self.outputs.send(Chunk(request_id, Marks(marks)))
                marks = {}
            self.num_sent += 1
            self.outputs.send(Chunk(request_id, message, 0, tensors, last))

    async def _credit(self, request_id: str) -> None:
        """What a real stage's gate does."""
        while not self.outputs.credit(request_id):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def _tell(self) -> None:
        status = Status(
            running=len(self.tasks),
            requests_total=len(self.seen),
            chunks_in=len(self.seen),
            chunks_out=self.num_sent,
            nan_steps=self.num_nan_steps,
            held={"tasks": len(self.tasks)},
            progress=None if self.progress is None else next(self.progress),
        )
        self.outputs.send(Chunk(ABOUT_ITSELF, status))

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        """What is sent for a request."""
        return
        yield

    def failure(self, status: int, message: str, param: str = "messages") -> Said:
        """The end of a request that failed."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        code = "context_length_exceeded"
        return Failed(status, message, kind, self.name, param, code), {}, True


class FakeThinker(FakeStage):
    """Answers in chunks shaped like vLLM's."""

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        if isinstance(request.body, Tokenize | Detokenize):
            for said in tokens_of(request.body):
                yield said
            return
        script = text_of(request.body)
        has_audio = "audio" in request.outputs
        if script == "refuse":
            yield self.failure(400, "too long")
            return
        if has_audio:
            self.graph.on_path("code2wav", request).begin(request_id, request)
        if script == "hang":
            await asyncio.Event().wait()
        if script == "wait" and not request.keeps_rows:
            await self.graph.told_to_go_on()
        if isinstance(request.body, GivenText):
            pieces = [piece async for piece in self.graph.pieces(request_id, request.body)]
            usage = {"prompt_tokens": len("".join(pieces)), "completion_tokens": 0}
            yield TextDelta({"choices": [], "usage": usage}), {}, True
            return
        num_choices = request.fields.get("n", 1)
        so_far, num_words = partial(usage_so_far, request.fields), 0
        for index in range(num_choices):
            opening = {"role": "assistant", "content": ""}
            yield self._text(opening, index=index, prompt=[1, 2], usage=so_far(0))
        has_logprobs = request.fields.get("logprobs")
        words = partial(with_logprobs, "stop") if has_logprobs else spoken_words
        make: Callable[[], list[Any]] = SCRIPTS.get(script, words)
        for delta, more in make():
            if script == "breathe" and num_words:
                await self.graph.told_to_go_on()
            num_words += bool(delta.get("content"))
            for index in range(num_choices):
                yield self._text(delta, index=index, usage=so_far(num_words), **more)
            if script == "fail later":
                yield self.failure(500, "broken")
                return
        if script == "pause":
            await asyncio.Event().wait()
        while script == "endless":
            yield self._text({"content": "x"})
            await asyncio.sleep(0.001)
        while script == "flood":
            yield self._text({"content": "x" * 50_000})
            await asyncio.sleep(0)
        if request.image is not None:
            drawn = msgspec.structs.replace(
                request, body=Draw({**request.image.fields, "prompt": script})
            )
            self.graph.on_path("dit", request).begin(request_id, drawn)
        usage = {"prompt_tokens": 5, "completion_tokens": 3 * num_choices, "total_tokens": 8}
        yield TextDelta({"id": "v", "choices": [], "usage": usage}), {}, True

    def _text(
        self,
        delta: Mapping[str, Any],
        index: int = 0,
        finish: str | None = None,
        prompt: list[int] | None = None,
        logprobs: Any = None,
        stop: str | int | None = None,
        usage: Mapping[str, int] | None = None,
    ) -> Said:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        choice |= {"token_ids": [7], "stop_reason": stop}
        choice["text"] = delta.get("content", "")  # of a text completion
        chunk: dict[str, Any] = {
            "id": "vllm",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "v",
        }
        chunk |= {"choices": [choice], "prompt_token_ids": prompt}
        chunk |= {} if usage is None else {"usage": usage}
        return TextDelta(chunk), {}, False


def usage_so_far(body: Mapping[str, Any], num_words: int) -> Mapping[str, int] | None:
    """That of one choice, if a request wants it in each chunk."""
    if not body.get("stream_options", {}).get("continuous_usage_stats"):
        return None
    return {"prompt_tokens": 5, "completion_tokens": num_words, "total_tokens": 5 + num_words}


def spoken_words() -> list[Any]:
    return [({"content": word}, {}) for word in WORDS] + [({"content": ""}, {"finish": "stop"})]


def stopped(stop: str | int) -> list[Any]:
    """As words behind which a stop string or token came."""
    return [*spoken_words()[:-1], ({"content": ""}, {"finish": "stop", "stop": stop})]


def tool_call() -> list[Any]:
    head = {"index": 0, "id": "call_1", "type": "function"}
    return [
        ({"tool_calls": [{**head, "function": {"name": "look", "arguments": ""}}]}, {}),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]}, {}),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, {}),
        ({"content": ""}, {"finish": "tool_calls"}),
    ]


def two_calls() -> list[Any]:
    """A word, then two functions one after the other."""
    calls: list[Any] = []
    for number, name in enumerate(("look", "go")):
        head = {"index": number, "id": f"call_{number}", "type": "function"}
        calls += [
            ({"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]}, {}),
            ({"tool_calls": [{"index": number, "function": {"arguments": "{}"}}]}, {}),
        ]
    return [({"content": "Well"}, {}), *calls, ({"content": ""}, {"finish": "tool_calls"})]


def thought() -> list[Any]:
    return [({"reasoning": "H"}, {}), ({"reasoning": "m"}, {}), *spoken_words()]


def with_logprobs(finish: str = "length") -> list[Any]:
    def entry(token: str) -> dict[str, Any]:
        return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}

    deltas = [({"content": word}, {"logprobs": {"content": [entry(word)]}}) for word in WORDS]
    return [*deltas, ({"content": ""}, {"finish": finish})]


SCRIPTS: dict[str, Callable[[], list[Any]]] = {
    "stop string": lambda: stopped("END"),
    "stop token": lambda: stopped(7),
    "silent": lambda: [({"content": ""}, {"finish": "stop"})],
    "endless": lambda: [],
    "flood": lambda: [],
    "tool": tool_call,
    "two tools": two_calls,
    "think": thought,
    "think and call": lambda: [*thought()[:-1], *tool_call()],
    "cut": with_logprobs,
    "logprobs": with_logprobs,
    "held": lambda: [
        ({}, {}),
        ({}, {}),
        ({"content": "all"}, {}),
        ({"content": ""}, {"finish": "stop"}),
    ],
}


class FakeTranscriber(FakeStage):
    """Says the words of its prompt, else how long the audio is; the prompt may name a script."""

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        body = request.body
        assert isinstance(body, Transcribe)
        if body.prompt == "refuse":
            yield self.failure(400, "too long")
            return
        if body.prompt == "hang":
            await asyncio.Event().wait()
        pieces = [one.message for one in self.seen if one.request_id == request_id]
        sizes = [
            tensors["data"].shape[0]
            for tensors in (one.tensors for one in self.seen if one.request_id == request_id)
            if "data" in tensors
        ]
        assert any(isinstance(piece, MediumPiece) for piece in pieces)
        text = body.prompt or f"I speak for {sum(sizes) / 16_000:.1f} s"
        logprobs = {"content": [{"token": text, "bytes": [], "logprob": -0.5}]}
        choice = {"index": 0, "delta": {"content": text}, "token_ids": [7]}
        choice |= {"logprobs": logprobs} if body.logprobs else {}
        yield TranscriptDelta({"choices": [choice]}), {}, False
        done = {"index": 0, "delta": {}, "finish_reason": "stop"}
        yield TranscriptDelta({"choices": [done]}), {}, False
        media = {"multimodal_tokens": {"audio": 4}}
        usage = {"prompt_tokens": 6, "completion_tokens": 1, "total_tokens": 7}
        usage |= {"prompt_tokens_details": media}  # type: ignore[dict-item]
        yield TranscriptDelta({"choices": [], "usage": usage}), {}, True


class FakeTalker(FakeStage):
    """As the entry of a graph that only speaks: says how many tokens its text has."""

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        self.graph.stages["code2wav"].begin(request_id, request)
        yield InputTokens(len(text_of(request.body))), {}, False


class FakeEmbedding(FakeStage):
    """Says of each input how long it is, which it is and how large its vector; the last first."""

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        if isinstance(request.body, Tokenize | Detokenize):
            for said in tokens_of(request.body, "embedding"):
                yield said
            return
        assert isinstance(request.body, Embed)
        inputs, size = request.body.inputs, request.body.dimensions or 4
        if inputs == ["refuse"]:
            yield self.failure(400, "too long", "input[0]")
            return
        if inputs == ["hang"]:
            await asyncio.Event().wait()
        for index in reversed(range(len(inputs))):
            vector = np.zeros(size, np.float32)
            vector[:3] = (len(inputs[index]), index, size)
            tensors = {"vector": Tensor.from_numpy(vector)}
            yield Embedding(index, len(inputs[index])), tensors, index == 0


def tokens_of(body: Tokenize | Detokenize, output: Any = "text") -> Iterator[Said]:
    """A byte is a token, of a conversation the last message's; in two pieces."""
    if isinstance(body, Detokenize):
        text = "".join(chr(one % 128) for one in body.tokens)
        yield Tokenized(output, text=text[:1]), {}, False
        yield Tokenized(output, text=text[1:]), {}, True
        return
    ids = list(text_of(body).encode())
    has_strs = body.fields.get("return_token_strs")
    for piece, last in ((ids[:1], False), (ids[1:], True)):
        yield Tokenized(output, piece, list(map(chr, piece)) if has_strs else None), {}, last


class FakeDit(FakeStage):
    """Makes pictures of one colour a picture; the prompt names the script."""

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        body = request.fields
        prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
        script, num_pictures = prompts[0], body["n"] * len(prompts)
        width, height = body["width"] or 48, body["height"] or 32
        if script == "refuse" or width * height > MAX_PIXELS:
            yield self.failure(400, "no such size", "size")
            return
        for step in range(1, STEPS + 1):
            yield Step("image", step, STEPS), {}, False
            if step <= (body["partial_images"] or 0):
                preview = ImagePixels("image", is_preview=True)
                yield preview, self._picture(body, 100 + step), False
            if script == "fail later" and step == 2:
                yield self.failure(500, "broken")
                return
        if script == "hang":
            await asyncio.Event().wait()
        layers = body.get("layers") or 1
        for index in range(num_pictures * layers):
            last = index == num_pictures * layers - 1
            layer = index % layers if layers > 1 else None
            thought = f"Thought {index}." if (body.get("extra") or {}).get("think") else ""
            tokens = len(script.split())
            picture = ImagePixels("image", index, text_tokens=tokens, layer=layer, thought=thought)
            yield picture, self._picture(body, index), last

    def _picture(self, body: Mapping[str, Any], grey: int) -> dict[str, Tensor]:
        channels = 4 if body["background"] == "transparent" else 3
        shape = (body["height"] or 32, body["width"] or 48, channels)
        return {"pixels": Tensor.from_numpy(np.full(shape, grey, np.uint8))}


class FakeCode2Wav(FakeStage):
    """Makes counting samples, a few frames a chunk; stereo counts down on the right."""

    makes_audio = True

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        script = text_of(request.body)
        num_frames = 0
        if script == "stall":
            yield Sound(), self._sound(0, 1, False), False
        if script == "break":
            yield Sound(), self._sound(0, 1, False), False
            yield self.failure(500, "broken")
            return
        if script == "short":
            yield Sound(1), self._sound(0, 1, False), True
            return
        if script in ("hang", "crash", "stall"):
            await asyncio.Event().wait()
        while script == "endless":
            yield Sound(), self._sound(0, 1, False), False
            await asyncio.sleep(0.001)
        if (
            isinstance(request.body, GivenText) and request.body.is_open
        ):  # a frame a piece that says something
            async for piece in self.graph.pieces(request_id, request.body):
                if piece:
                    yield Sound(), self._sound(num_frames, 1, False), False
                    num_frames += 1
            yield Sound(num_frames), {}, True
            return
        for count in () if script in ("silent", "tool") else FRAMES:
            yield Sound(), self._sound(num_frames, count, request.return_codes), False
            num_frames += count
        yield Sound(num_frames), {}, True

    def _sound(self, first: int, count: int, has_codes: bool) -> dict[str, Tensor]:
        samples = np.arange(first * SAMPLES_PER_FRAME, (first + count) * SAMPLES_PER_FRAME)
        if self.graph.num_channels == 2:
            samples = np.stack([samples, -samples], axis=1)
        tensors = {"pcm": Tensor.from_numpy(samples.astype(np.int16))}
        if has_codes:
            codes = np.stack([np.arange(first, first + count), np.full(count, 9)], axis=1)
            tensors["codes"] = Tensor.from_numpy(codes.astype(np.int32))
        return tensors


class FakeCamera(FakeStage):
    """Makes frames of one grey each, every one lighter by 40 than the one before."""

    makes_audio = True
    work = WorkBound(max_megapixels=0.1, reason="its camera", side_multiple=16)

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        body = request.fields
        script = body["prompt"]
        if script == "refuse":
            yield self.failure(400, "makes no video")
            return
        for step in range(1, STEPS + 1):
            yield Step("video", step, STEPS), {}, False
            if script == "hang" and step == STEPS // 2:
                await asyncio.Event().wait()
            if script == "fail later":
                yield self.failure(500, "broken")
                return
        shape = (body["height"] or 48, body["width"] or 64, 3)
        num_frames = body["num_frames"] or self.work.num_frames or 5
        has_sound = script == "with sound" and body.get("audio") is not False
        for index in range(num_frames):
            pixels = Tensor.from_numpy(np.full(shape, 40 * index % 256, np.uint8))
            fps = 25.0 if script == "at 25" else self.work.fps
            last = index == num_frames - 1 and not has_sound
            yield ImagePixels("video", index, fps=fps), {"pixels": pixels}, last
        for part in range(2 if has_sound else 0):
            pcm = np.full((SAMPLES_PER_FRAME, 2), (1000, -2000), np.int16)
            yield Sound(output="video"), {"pcm": Tensor.from_numpy(pcm)}, part == 1


class FakeStudio(FakeCamera):
    """One that is told a rate, makes 4k + 1 frames, and has a default of everything."""

    work = WorkBound(
        max_megapixels=40.0,
        reason="its studio",
        width=64,
        height=48,
        num_frames=9,
        steps=STEPS,
        side_multiple=16,
        fps=8.0,
        frame_step=4,
    )


class FakeRestyler(FakeStudio):
    """One whose pipeline takes a video and changes its frames, of the video's number."""

    reading = Reading(fields=["image", "video", "mask"], counted=["video"])


class FakeNarrator(FakeStudio):
    """One whose pipeline goes on from a video."""

    reading = Reading(fields=["video"])


class FakeAnimator(FakeStudio):
    """One whose pipeline makes nothing without a first frame."""

    reading = Reading(fields=["image"], needed=["image"], most={"image": 1})


class FakeWriter(FakeStudio):
    """One whose pipeline takes words alone."""

    reading = Reading(fields=[])


SOUND_PIECE = 1 << 19  # samples of a message: a channel takes no whole minutes


class FakeSynth(FakeStage):
    """Makes stereo that counts up on the left and down on the right, in two messages or more."""

    makes_audio = True

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Said]:
        script = request.fields["prompt"]
        if script == "refuse":
            yield self.failure(400, "this pipeline takes no lyrics", "lyrics")
            return
        for step in range(1, STEPS + 1):
            yield Step("audio", step, STEPS), {}, False
            if script == "hang" and step == STEPS // 2:
                await asyncio.Event().wait()
        num_samples = round(
            (request.fields["audio_length"] or 1) * (self.graph.sample_rate_hz or 0)
        )
        samples = np.arange(num_samples) % 1000
        pcm = np.stack([samples, -samples], axis=1).astype(np.int16)
        pieces = np.array_split(pcm, max(2, -(-len(pcm) // SOUND_PIECE)))
        for number, piece in enumerate(pieces, 1):
            yield Sound(), {"pcm": Tensor.from_numpy(piece)}, number == len(pieces)
