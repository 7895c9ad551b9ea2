"""Messages of a stage's process to the gateway: about itself, and about its requests."""

from typing import Literal

import msgspec

from omnistage.connectors.messages import Message, Messages
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.work import WorkBound
from omnistage.stages.messages.families import MetricFamily

PictureOutput = Literal["image", "video"]
PipelineOutput = Literal["image", "video", "audio"]
NumChannels = Literal[1, 2]  # mono or stereo

TOKEN_SIDE = 16  # pixels of the side of what most denoisers take as one token
ABOUT_ITSELF = "itself"  # the id under which a stage speaks of itself


# Of itself


class Lora(msgspec.Struct, frozen=True):
    """A LoRA adapter of a stage; `in_use`: by how many requests."""

    name: str
    path: str
    rank: int
    pinned: bool = False
    in_use: int = 0


class Speech(msgspec.Struct, frozen=True):
    """The abilities of a stage that speaks given texts.

    `languages`: those that it can be told; none: it is told none. `takes_sound`: a voice may be
    made from a reference sound; `needs_sound`: there is no other. `needs_instructions`: a
    description is the voice. `takes_pieces`: its text may come while it speaks. `max_text`: how
    many characters one request may have; 0: the stage does not say.
    """

    languages: list[str] = msgspec.field(default_factory=list)
    takes_sound: bool = False
    needs_sound: bool = False
    needs_instructions: bool = False
    takes_pieces: bool = False
    max_text: int = 0


Sampler = Literal["qwen2_vl", "qwen3_vl", "uniform"]


class Reading(msgspec.Struct, frozen=True):
    """How a stage takes the media of its requests.

    `audio_rate_hz`: samples at this rate, or at their file's own if it is 0; None: it takes no
    sound. `takes_video`: it sees videos: frames that `sampler` chooses with `options`, or whole
    files where there is none. `fields`: of a pipeline, the fields of media that it has places for,
    as `GivenMedium` names them; None: the stage does not say. `counted`: those among them whose
    frames are as many as the result's. `needed`: those that words alone lack. `most`: media that a
    request may have of a field.
    """

    audio_rate_hz: int | None = None
    takes_video: bool = False
    sampler: Sampler | None = None
    options: dict[str, float] = msgspec.field(default_factory=dict)
    fields: list[str] | None = None
    counted: list[str] = msgspec.field(default_factory=list)
    needed: list[str] = msgspec.field(default_factory=list)
    most: dict[str, int] = msgspec.field(default_factory=dict)


class Ready(Message, frozen=True):
    """The stage serves from now on, and what it can do.

    `speakers`: the voices that it knows. `sample_rate_hz`, `num_channels`: of the audio that it
    makes; samples [n, 2] are stereo in any case. `commands`: those that it knows, each with why it
    is refused as the stage is configured, or with nothing. `work`: the most that one request may
    ask it for. `loras`: adapters that are models of their own; None where adapters are none, as a
    pipeline's. `speech`: of an entry that speaks a given text; None: there is nothing to say but
    the `speakers`. `reading`: of an entry whose requests have media.
    """

    seconds: float = 0.0
    speakers: list[str] = msgspec.field(default_factory=list)
    sample_rate_hz: int | None = None
    max_model_len: int | None = None
    commands: dict[str, str] = msgspec.field(default_factory=dict)
    work: WorkBound = WorkBound()
    num_channels: NumChannels = 1
    loras: list[Lora] | None = None
    speech: Speech | None = None
    reading: Reading = Reading()


class Status(Message, frozen=True):
    """The stage's counters, whenever they change.

    `held`: what requests hold in its processes, by name; all zero when there is none. `progress`
    grows as long as what it computes gets on; None: it computes nothing, or cannot tell.
    """

    running: int = 0
    waiting: int = 0
    requests_total: int = 0
    chunks_in: int = 0
    chunks_out: int = 0
    nan_steps: int = 0
    held: dict[str, int] = msgspec.field(default_factory=dict)
    progress: int | None = None


class Alive(Message, frozen=True):
    """The engine's own loop has answered just now."""


class Compiling(Message, frozen=True):
    """The engine's own loop has not answered, because code is compiled."""


class Metrics(Message, frozen=True):
    """The stage's metrics as they are now, sent every second while the gateway takes them."""

    families: list[MetricFamily] = msgspec.field(default_factory=list)


# Of a command


class Failed(Message, frozen=True):
    """A request or a command failed: the fields of OpenAI's error envelope, and the stage."""

    status: int
    message: str
    type: str
    stage: str
    param: str | None = None
    code: str | None = None


class CommandResult(Message, frozen=True):
    """A command's result, or why there is none."""

    result: Json = msgspec.field(default_factory=dict)
    error: Failed | None = None


# Of a request


class TextDelta(Message, frozen=True):
    """A piece of a text answer: vLLM's chat completion chunk; the last one has the usage."""

    chunk: Json


class TranscriptDelta(Message, frozen=True):
    """A piece of a transcript, as a chat completion chunk; the last one has the usage."""

    chunk: Json


class Sound(Message, frozen=True):
    """Samples: tensor `pcm`, int16 [n] of mono or [n, 2] of stereo, at the rate of `Ready`.

    Tensor `codes` holds the frames that they were made of, if asked for. `num_frames` counts all of
    the answer's, on the last. `output`: `video` for the audio of a video, which follows its frames.
    """

    num_frames: int = 0
    output: Literal["audio", "video"] = "audio"


class ImagePixels(Message, frozen=True):
    """A picture, a frame of a video or a preview: tensor `pixels`, uint8 [height, width, channels].

    `text_tokens` counts the request's words; `fps` is the rate that a video was made for, in frames
    per second, 0 if its pipeline knows none. `token_side`: pixels of the side of an image token.
    `layer`: of a picture that is made in layers, from the lowest, 0; None of a whole one.
    `thought`: what the model wrote before it made the picture.
    """

    output: PictureOutput
    index: int = 0
    is_preview: bool = False
    text_tokens: int = 0
    fps: float = 0
    token_side: int = TOKEN_SIDE
    layer: int | None = None
    thought: str = ""


class Step(Message, frozen=True):
    """A step was taken of denoising, or of a stage before it; `num_steps` is 0 if it is unknown."""

    output: PipelineOutput
    step: int
    num_steps: int = 0


class Marks(Message, frozen=True):
    """The points of its timeline that the request reached: readings of the monotonic clock, ns."""

    events: dict[str, int]


class Queued(Message, frozen=True):
    """The request waits for memory of others that get on: nothing of it is late."""


class Embedding(Message, frozen=True):
    """The vector of one input: tensor `vector`, float32 [size]; `num_tokens` of the input."""

    index: int
    num_tokens: int


class Tokenized(Message, frozen=True):
    """A piece of a text's tokens, or of the text of tokens: no output of the graph.

    It comes from the entry stage, under the name of an output that this stage makes.
    """

    output: Literal["text", "embedding"]
    token_ids: list[int] = msgspec.field(default_factory=list)
    token_strs: list[str] | None = None
    text: str = ""


class InputTokens(Message, frozen=True):
    """How many tokens a given text has: no output of the graph, from the entry that speaks it."""

    num_tokens: int


Output = TextDelta | TranscriptDelta | Sound | ImagePixels | Step | Embedding | Tokenized
OfItself = Ready | Status | Alive | Compiling | Metrics
OfRequest = Output | InputTokens | Failed | Marks | Queued
ToGateway = OfItself | CommandResult | OfRequest
TO_GATEWAY: Messages[ToGateway] = Messages(
    Ready,
    Status,
    Alive,
    Compiling,
    Metrics,
    CommandResult,
    TextDelta,
    TranscriptDelta,
    Sound,
    ImagePixels,
    Step,
    Embedding,
    Tokenized,
    InputTokens,
    Failed,
    Marks,
    Queued,
)


def output_name(message: Output) -> str:
    """The graph's output that a message belongs to."""
    if isinstance(message, TextDelta):
        return "text"
    if isinstance(message, TranscriptDelta):
        return "transcript"
    if isinstance(message, Embedding):
        return "embedding"
    return message.output
