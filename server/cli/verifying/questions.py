"""The questions to a model: a small fixed set, chosen by its graph's inputs and outputs."""

import base64
import io
import wave
from collections.abc import Iterator
from dataclasses import dataclass

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import chat_outputs
from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stages.messages.to_reference import Task

MAX_TOKENS, MAX_FRAMES = 24, 40
RATE_HZ, SIDE, NUM_VIDEO_FRAMES, VIDEO_FPS = 16_000, 128, 4, 4
SIZES = "128x128", "64x64"  # few pipelines make none of them
GREEDY = {"temperature": 0}
CHAT: JsonMap = {
    **GREEDY,
    "repetition_penalty": 1.0,
    "max_completion_tokens": MAX_TOKENS,
    "return_token_ids": True,
    "seed": 0,
}
TEXT = "Hello! Who are you, and what can you do? Answer in one sentence."


@dataclass(frozen=True, slots=True)
class Question:
    """A request, by its fields; `is_spoken`: a chat that is answered by speech, too.

    `ways`: other fields to ask it with where the model refuses those before.
    """

    name: str
    task: Task
    fields: JsonMap
    is_spoken: bool = False
    ways: tuple[JsonMap, ...] = ()


def questions_of(graph: StageGraph, stage: StageSpec) -> Iterator[Question]:
    """Yields what is asked to compare the model of a stage with its reference, if it has one."""
    kind = KINDS[stage.kind]
    if kind.reference is None:
        return
    if "text" in kind.outputs:
        yield from _chats(graph, hears=kind.hears, sees_videos=kind.hears_videos)
    elif "image" in kind.outputs:
        if "image" in graph.outputs and not graph.waits_for("image"):
            fields = {"prompt": "a red house by the sea", "num_inference_steps": 4, "seed": 0}
            first, *others = ({"size": size} for size in SIZES)
            yield Question("image", Task.IMAGE, {**fields, **first}, ways=tuple(others))
    elif "audio" in graph.outputs:
        fields = {"input": TEXT, "seed": 0, "stage_params": greedy_stages(graph, "audio")}
        ways = {"instructions": "A low, calm voice."}, {"ref_audio": _url("audio/wav", sound())}
        yield Question("speech out", Task.SPEECH, fields, ways=ways)


def _chats(graph: StageGraph, *, hears: bool, sees_videos: bool) -> Iterator[Question]:
    picture = {"type": "image_url", "image_url": {"url": _url("image/png", image())}}
    heard = base64.b64encode(sound()).decode()
    audio = {"type": "input_audio", "input_audio": {"data": heard, "format": "wav"}}
    film = {"type": "video_url", "video_url": {"url": _url("video/mp4", video())}}
    yield _chat("text in", TEXT)
    if hears:
        yield _chat("image in", "What do you see?", picture)
        yield _chat("audio in", "What do you hear?", audio)
    if sees_videos:
        yield _chat("video in", "What happens?", film)
    if "audio" in chat_outputs(graph):
        own = greedy_stages(graph, "audio", "text")
        yield _chat("speech out", TEXT, stages=own)
        if hears:
            yield _chat("speech about media", "Do they fit?", audio, picture, stages=own)


def _chat(name: str, text: str, *media: JsonMap, stages: JsonMap | None = None) -> Question:
    content = [*media, {"type": "text", "text": text}]
    fields = {**CHAT, "messages": [{"role": "user", "content": content}]}
    if stages is None:
        return Question(name, Task.CHAT, {**fields, "logprobs": True})
    fields |= {"stage_params": stages, "return_codes": True}
    return Question(name, Task.CHAT, {**fields, "modalities": ["text", "audio"]}, is_spoken=True)


def greedy_stages(graph: StageGraph, *outputs: str) -> Json:
    """Returns what has the stages on the way to speech speak greedily, and not for long."""
    writers = {graph.outputs[output] for output in outputs if output != "audio"}
    speaks = [name for name in graph.path(outputs) if KINDS[graph.stages[name].kind].samples]
    return {name: {**GREEDY, "max_tokens": MAX_FRAMES} for name in speaks if name not in writers}


def image() -> bytes:
    """Returns a PNG file: a disc before a field whose colours run into each other."""
    y, x = np.mgrid[:SIDE, :SIDE]
    colours = np.stack([2 * x, 2 * y, 255 - x - y], axis=-1)
    colours[(x - 64) ** 2 + (y - 64) ** 2 < 30**2] = (230, 40, 40)
    buffer = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def sound() -> bytes:
    """Returns a WAV file of a second: a tone that rises."""
    times = np.arange(RATE_HZ) / RATE_HZ
    samples = 0.3 * np.sin(2 * np.pi * (200 * times + 200 * times**2))
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def video() -> bytes:
    """Returns an MP4 file of a second, with a bar that moves to the right."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=VIDEO_FPS)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for number in range(NUM_VIDEO_FRAMES):
            pixels: npt.NDArray[np.uint8] = np.full((SIDE, SIDE, 3), 40, np.uint8)
            pixels[:, 30 * number : 30 * number + 20] = (220, 200, 40)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def _url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
