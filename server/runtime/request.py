"""A request as the stages get it, and the outputs that leave the graph for it."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.inputs import MediaInput, TextInput
from omnistage.server.runtime.samples import SampleFormat, sample_format_of
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages import to_gateway, to_stage
from omnistage.stages.messages.body import GivenText

HAS_LIMITS = frozenset({"image", "video"})  # outputs whose stages say how much of them they make


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """One validated request: the message that its entry stages get, and what goes with it.

    `text`: what follows the text of its body. `media`: what of its media is sent before it.
    """

    id: str
    message: to_stage.Request
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    text: TextInput | None = None
    media: MediaInput | None = None

    @property
    def given_text(self) -> GivenText:
        """The body of a text that is spoken as it is."""
        assert isinstance(self.message.body, GivenText), "only speech has one"
        return self.message.body

    def with_text(self, text: TextInput) -> "GraphRequest":
        """Return the same with the text that follows its body's."""
        body = structs.replace(self.given_text, is_open=True)
        return replace(self.changed(body=body), text=text)

    def changed(self, **fields: Any) -> "GraphRequest":
        """Return the same with other fields of its message."""
        return replace(self, message=structs.replace(self.message, **fields))

    def check_work(self, path: Iterable[StageLink]) -> None:
        """Raise ApiError if a stage on its path does not make its image or video."""
        body = self.message.fields
        if self.message.image is not None:
            body = {**self.message.image.fields, "prompt": ""}  # which may not be written yet
        media = self.message.given_media
        name = next((one.tensor for one in media if one.field == "image"), None)
        given = None if name is None else self.tensors[name]
        image = None if given is None else (given.shape[1], given.shape[0])
        for link in path:
            refusal = link.record.work.refusal(body, image)
            if refusal is not None:
                message = f"{refusal.param}: {refusal.message}"
                if refusal.is_too_much:
                    raise ApiError(400, message, param=refusal.param, code="too_much_work")
                raise ApiError(400, message, param=refusal.param, code="invalid_value")

    def to_chunk(
        self, path: Sequence[str], traceparent: str | None = None
    ) -> Chunk[to_stage.Request]:
        """The chunk that opens it at an entry stage; engines export spans below `traceparent`."""
        message = structs.replace(self.message, path=list(path), traceparent=traceparent)
        return Chunk(self.id, message, 0, self.tensors)


@dataclass(frozen=True, slots=True)
class TextOutput:
    """A chat completion chunk of an answer or of a transcript; `last` on its final one."""

    chunk: JsonMap
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
    """Holds one image or frame, a preview of one, or the number of a step that a `stage` has taken.

    `text_tokens` counts the request's words; `fps` is the rate that a frame was made for, in frames
    per second, 0 if none is known; `token_side` the pixels of the side of an image token; `last` is
    on the last image. `layer`: its number from the lowest of an image that is made in layers, or
    None. `thought`: what the model wrote before it made the image.
    """

    pixels: bytes = b""  # [height, width, num_channels]
    width: int = 0
    height: int = 0
    num_channels: int = 3
    is_preview: bool = False
    step: int = 0
    num_steps: int = 0  # 0 if the pipeline does not say it
    stage: str = ""  # of a step: the one that makes the image, or one before it
    text_tokens: int = 0
    fps: float = 0
    token_side: int = to_gateway.TOKEN_SIDE
    layer: int | None = None
    thought: str = ""
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
    if isinstance(message, to_gateway.TextDelta | to_gateway.TranscriptDelta):
        return TextOutput(message.chunk, last)
    if isinstance(message, to_gateway.Embedding):
        return EmbeddingOutput(message.index, message.num_tokens, tensors["vector"], last)
    if isinstance(message, to_gateway.Tokenized):
        return TokensOutput(message.token_ids, message.token_strs, message.text, last)
    if isinstance(message, to_gateway.Step):
        return ImageOutput(
            step=message.step, num_steps=message.num_steps, stage=link.stage, last=last
        )
    if isinstance(message, to_gateway.ImagePixels):
        return image_of(message, tensors["pixels"], last)
    return audio_of(sample_format_of(link, tensors.get("pcm")), message, tensors, last)


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
        layer=image.layer,
        thought=image.thought,
        last=last,
    )
