"""The tasks of entry stages: one type of body for each, so that no stage guesses."""

import msgspec

from omnistage.stage_configs.json_types import Json


class Body(
    msgspec.Struct, frozen=True, tag_field="task", tag=str.lower, forbid_unknown_fields=True
):
    """The part of a request that its entry stage reads."""


class WithFields(Body, frozen=True):
    """A body whose checked fields go on to the stage's library as they are."""

    fields: Json


class Chat(WithFields, frozen=True):
    """A conversation to answer: fields of vLLM's chat completion."""


class Prompt(WithFields, frozen=True):
    """A text, or several, to continue: fields of vLLM's completion."""


class Tokenize(WithFields, frozen=True):
    """A prompt or a conversation whose tokens are wanted: fields of vLLM's tokenize."""


class GivenMedium(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One medium that a request brings to its pipeline, and the tensor that has it.

    `field`: the API's name of what it is for, such as `image`, `mask`, `control_image`,
    `last_image`, `video`, `control_video`, `face_video`, `reference_image`, `audio`,
    `reference_audio` or `audio_reference`. Its `tensor` is uint8 [height, width, 3 or 4] of an
    image, uint8 [height, width] of a mask (255 is repainted), uint8 [frames, height, width, 3] of a
    video, float32 [channels, samples] of audio. `rate`: frames per second of a video, Hz of audio;
    0 of an image.
    """

    field: str
    tensor: str
    rate: float = 0


class Draw(WithFields, frozen=True):
    """Images, a video or audio to make: fields of its request, and the media beside them."""

    media: list[GivenMedium] = []


class Detokenize(Body, frozen=True):
    """Token ids whose text is wanted."""

    tokens: list[int]


class Embed(Body, frozen=True):
    """Texts, or the token ids of texts, to embed; `dimensions`: None for the model's own."""

    inputs: list[str | list[int]]
    dimensions: int | None = None


class Transcribe(Body, frozen=True):
    """Speech to write down: the request's only medium.

    `prompt`: text that goes before, or words that may be said. `max_tokens`: None for as many as
    the model's context has room for. `logprobs`: each token comes with its own.
    """

    language: str | None = None
    prompt: str = ""
    to_english: bool = False
    temperature: float = 0.0
    max_tokens: int | None = None
    logprobs: bool = False


class VoiceSample(msgspec.Struct, frozen=True):
    """The reference audio of a voice, which is the request's tensor `reference`.

    `key` names its samples: what a stage computes of them is kept under it. `text`: its words.
    """

    key: str
    text: str | None = None


class GivenText(Body, frozen=True):
    """A text to be spoken as it is.

    `is_open`: `text` is only its first piece; `MoreText` brings the others.
    """

    text: str
    instructions: str = ""
    language: str | None = None
    reference: VoiceSample | None = None
    is_open: bool = False


AnyBody = Chat | Prompt | GivenText | Transcribe | Tokenize | Detokenize | Embed | Draw
