"""A request as the stages get it, and the outputs that leave the graph for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.server.runtime.timeline import Timeline

StageParameter = int | float | bool


@dataclass(frozen=True, slots=True)
class Request:
    """One validated request: which outputs it wants, and the chat body of the entry stage."""

    id: str
    outputs: tuple[str, ...]
    body: Mapping[str, Any]
    speaker: str | None = None
    stage_params: Mapping[str, Mapping[str, StageParameter]] = field(default_factory=dict)
    seed: int | None = None
    return_codes: bool = False
    timeline: Timeline | None = None  # if it was asked for
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def to_chunk(self) -> Chunk:
        """The chunk that opens it at the entry stage."""
        meta = {
            "body": self.body,
            "outputs": list(self.outputs),
            "speaker": self.speaker,
            "stage_params": self.stage_params,
            "seed": self.seed,
            "return_codes": self.return_codes,
            "timeline": self.timeline is not None,
        }
        return Chunk(self.id, "request", 0, self.tensors, meta)


@dataclass(frozen=True, slots=True)
class TextOutput:
    """One chat completion chunk of the text stage; `last` on its final one."""

    chunk: Mapping[str, Any]
    last: bool = False


@dataclass(frozen=True, slots=True)
class AudioOutput:
    """Samples (s16le, 24 kHz, mono), or what an encoder made of them; codec frames if asked for.

    `num_frames` on the last.
    """

    data: bytes = b""
    codes: tuple[tuple[int, ...], ...] = ()
    num_frames: int = 0
    last: bool = False


@dataclass(frozen=True, slots=True)
class ImageOutput:
    """One picture or frame, a preview of one, or the number of a step that was taken.

    `text_tokens` counts the request's words; `last` is on the last picture.
    """

    pixels: bytes = b""  # [height, width, num_channels]
    width: int = 0
    height: int = 0
    num_channels: int = 3
    is_preview: bool = False
    step: int = 0
    num_steps: int = 0  # 0 if the pipeline does not say it
    text_tokens: int = 0
    last: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.width, self.height


Output = TextOutput | AudioOutput | ImageOutput


def output_of(chunk: Chunk) -> Output:
    """Read an output's chunk."""
    if chunk.kind == "text":
        return TextOutput(chunk.meta["chunk"], chunk.last)
    if chunk.kind in ("image", "video"):
        return image_of(chunk)
    pcm = chunk.tensors.get("pcm")
    codes = chunk.tensors.get("codes")
    return AudioOutput(
        b"" if pcm is None else bytes(pcm.data),
        () if codes is None else tuple(map(tuple, codes.numpy().tolist())),
        int(chunk.meta.get("frames", 0)),
        chunk.last,
    )


def image_of(chunk: Chunk) -> ImageOutput:
    """Read a picture or a step."""
    meta, tensor = chunk.meta, chunk.tensors.get("pixels")
    if tensor is None:
        return ImageOutput(step=meta["step"], num_steps=meta.get("steps", 0), last=chunk.last)
    height, width, num_channels = tensor.shape
    return ImageOutput(
        bytes(tensor.data),
        width,
        height,
        num_channels,
        meta.get("is_preview", False),
        text_tokens=meta.get("text_tokens", 0),
        last=chunk.last,
    )
