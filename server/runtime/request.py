"""A request as the stages get it, and the outputs that leave the graph for it."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.server.runtime.media_input import MediaInput
from omnistage.server.runtime.samples import SampleFormat, sample_format_of
from omnistage.server.runtime.stage_link import StageLink
from omnistage.server.runtime.text_input import TextInput
from omnistage.stages.messages import to_gateway, to_stage


@dataclass(frozen=True, slots=True)
class Request:
    """One validated request: which outputs it wants, and the body of the entry stage.

    `image`: the fields of the image that another stage makes of what the entry says. `text`: what
    follows the text of the body. `media`: what of its media is sent before it.
    """

    id: str
    outputs: tuple[str, ...]
    body: Mapping[str, Any]
    speaker: str | None = None
    stage_params: Mapping[str, Mapping[str, to_stage.Parameter]] = field(default_factory=dict)
    seed: int | None = None
    return_codes: bool = False
    image: Mapping[str, Any] | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    text: TextInput | None = None
    media: MediaInput | None = None

    def to_chunk(
        self, path: Sequence[str], traceparent: str | None = None
    ) -> Chunk[to_stage.Request]:
        """The chunk that opens it at an entry stage; engines export spans below `traceparent`."""
        message = to_stage.Request(
            body=dict(self.body) if self.text is None else {**self.body, "open": True},
            outputs=list(self.outputs),
            path=list(path),
            image=None if self.image is None else dict(self.image),
            speaker=self.speaker,
            stage_params={name: dict(given) for name, given in self.stage_params.items()},
            seed=self.seed,
            return_codes=self.return_codes,
            traceparent=traceparent,
        )
        return Chunk(self.id, message, 0, self.tensors)


@dataclass(frozen=True, slots=True)
class TextOutput:
    """One chat completion chunk of the text stage; `last` on its final one."""

    chunk: Mapping[str, Any]
    last: bool = False


@dataclass(frozen=True, slots=True)
class AudioOutput:
    """Samples (s16le), or what an encoder made of them; codec frames if asked for.

    `num_frames` on the last.
    """

    samples: SampleFormat
    data: bytes = b""
    codes: tuple[tuple[int, ...], ...] = ()
    num_frames: int = 0
    last: bool = False


@dataclass(frozen=True, slots=True)
class ImageOutput:
    """One image or frame, a preview of one, or the number of a step that was taken.

    `text_tokens` counts the request's words; `fps` is the rate that a frame was made for, in frames
    per second, 0 if none is known; `token_side` the pixels of the side of an image token; `last` is
    on the last image.
    """

    pixels: bytes = b""  # [height, width, num_channels]
    width: int = 0
    height: int = 0
    num_channels: int = 3
    is_preview: bool = False
    step: int = 0
    num_steps: int = 0  # 0 if the pipeline does not say it
    text_tokens: int = 0
    fps: float = 0
    token_side: int = to_gateway.TOKEN_SIDE
    last: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.width, self.height


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The vector of one input, and how many tokens that has."""

    index: int
    num_tokens: int
    vector: Tensor  # float32 [size]
    last: bool = False


@dataclass(frozen=True, slots=True)
class TokensOutput:
    """A piece of a text's tokens, or of the text of tokens."""

    token_ids: list[int]
    token_strs: list[str] | None
    text: str
    last: bool = False


@dataclass(frozen=True, slots=True)
class InputTokensOutput:
    """How many tokens the given text has; an answer never ends with it."""

    num_tokens: int
    last: bool = False


Output = TextOutput | AudioOutput | ImageOutput | EmbeddingOutput | TokensOutput | InputTokensOutput
Outputs = AsyncGenerator[Output, None]


def output_of(
    link: StageLink, message: to_gateway.Output, tensors: Mapping[str, Tensor], last: bool
) -> Output:
    """Read an output's message from a stage, with its tensors."""
    if isinstance(message, to_gateway.TextDelta):
        return TextOutput(message.chunk, last)
    if isinstance(message, to_gateway.Embedding):
        return EmbeddingOutput(message.index, message.num_tokens, tensors["vector"], last)
    if isinstance(message, to_gateway.Tokenized):
        return TokensOutput(message.token_ids, message.token_strs, message.text, last)
    if isinstance(message, to_gateway.Step):
        return ImageOutput(step=message.step, num_steps=message.num_steps, last=last)
    if isinstance(message, to_gateway.ImagePixels):
        return image_of(message, tensors["pixels"], last)
    return audio_of(sample_format_of(link), message, tensors, last)


def audio_of(
    samples: SampleFormat, audio: to_gateway.Sound, tensors: Mapping[str, Tensor], last: bool
) -> AudioOutput:
    """Read samples."""
    pcm = tensors.get("pcm")
    codes = tensors.get("codes")
    return AudioOutput(
        samples,
        b"" if pcm is None else bytes(pcm.data),
        () if codes is None else tuple(map(tuple, codes.numpy().tolist())),
        audio.num_frames,
        last,
    )


def image_of(image: to_gateway.ImagePixels, pixels: Tensor, last: bool = False) -> ImageOutput:
    """Read an image, a frame or a preview."""
    height, width, num_channels = pixels.shape
    return ImageOutput(
        bytes(pixels.data),
        width,
        height,
        num_channels,
        image.is_preview,
        text_tokens=image.text_tokens,
        fps=image.fps,
        token_side=image.token_side,
        last=last,
    )
