"""The settings of a session's audio: formats, turns, transcription, voice."""

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from omnistage.server.common.fields import RequestFields
from omnistage.server.realtime.voice.formats import PCM, PCM_SAMPLES, FormatName
from omnistage.server.realtime.voice.turns import TurnSettings
from omnistage.server.tasks.chat.schema import Voice
from omnistage.server.tasks.transcripts.transcription_fields import Language, Text
from omnistage.stage_configs.declared.sampling import Count, Flag, Number

MIN_SPEED, MAX_SPEED = 0.25, 1.5
# The silence after which a turn has ended, by how eager to answer the session is.
SILENCE_MS = {"low": 1200, "medium": 600, "high": 300, "auto": 600}
# The same where a model judges whether it has, after a short silence.
MOST_SILENCE_MS = {"low": 8000, "medium": 4000, "high": 2000, "auto": 4000}
JUDGE_MS = 200

Milliseconds = Annotated[Count, Field(ge=0, le=60_000)]
Speed = Annotated[Number, Field(ge=MIN_SPEED, le=MAX_SPEED)]


class Options(RequestFields):
    """Fields of a session; what nobody knows has no effect and is not reported back."""

    model_config = ConfigDict(extra="ignore")


class AudioFormat(Options):
    """A format by its name; PCM has its rate beside it."""

    type: FormatName = PCM
    rate: Literal[24_000, 8_000] | None = None

    @model_validator(mode="after")
    def _has_its_rate(self) -> "AudioFormat":
        if self.type == PCM:
            if self.rate not in (None, PCM_SAMPLES.rate_hz):
                raise ValueError(f"rate must be {PCM_SAMPLES.rate_hz} with {PCM}")
            self.rate = 24_000
        else:
            self.rate = None
        return self


class ServerVad(Options):
    """Turns by silence of a length."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[Number, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Milliseconds = 500
    create_response: Flag = True
    interrupt_response: Flag = True
    idle_timeout_ms: Annotated[Count, Field(ge=5000, le=30_000)] | None = None

    @property
    def turns(self) -> TurnSettings:
        """Return how its turns are told."""
        return TurnSettings(self.threshold, self.prefix_padding_ms, self.silence_duration_ms)


class SemanticVad(Options):
    """Turns by what is said; without a model that judges it, by silence as long as eagerness says.

    `low` waits the longest.
    """

    type: Literal["semantic_vad"] = "semantic_vad"
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: Flag = True
    interrupt_response: Flag = True
    idle_timeout_ms: ClassVar[None] = None

    @property
    def turns(self) -> TurnSettings:
        """Return how its turns are told."""
        return TurnSettings(silence_ms=SILENCE_MS[self.eagerness])

    @property
    def judged_turns(self) -> TurnSettings:
        """Return the same where a model judges them."""
        return TurnSettings(silence_ms=MOST_SILENCE_MS[self.eagerness], judge_ms=JUDGE_MS)


TurnDetection = Annotated[ServerVad | SemanticVad, Field(discriminator="type")]


class Transcription(Options):
    """Transcription of the user's audio, always by the model that is served."""

    model: str | None = None
    language: Language | None = None
    prompt: Text | None = None


class NoiseReduction(Options):
    """A kind of microphone; audio is taken as it is."""

    type: Literal["near_field", "far_field"] | None = None


class AudioInput(Options):
    """The user's audio."""

    format: AudioFormat = AudioFormat()
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None
    turn_detection: TurnDetection | None = ServerVad()


class OutputAudioSettings(Options):
    """The model's audio."""

    format: AudioFormat = AudioFormat()
    voice: Voice = "alloy"
    speed: Speed = 1.0


class SessionAudio(Options):
    """Audio of a session, both ways."""

    input: AudioInput = AudioInput()
    output: OutputAudioSettings = OutputAudioSettings()


class InputAudio(Options):
    """Audio of a session that only transcribes."""

    input: AudioInput = AudioInput()
