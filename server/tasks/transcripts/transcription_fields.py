"""The fields of a transcription, and the words in which the model gets the task."""

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.common.fields import RequestFields, parse
from omnistage.server.media.parts import bare_base64, decoded
from omnistage.server.tasks.chat.schema import at_most
from omnistage.stage_configs.json_types import Json

MAX_PROMPT = 16_384
MAX_WORDS = 1024
STYLE = "Keep the spelling and the style of this text before it:"

Text = Annotated[str, Field(max_length=MAX_PROMPT)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Language = Annotated[str, Field(pattern=r"^[A-Za-z]{2,20}([-_][A-Za-z0-9]{2,8})*$")]


def _one_as_list(value: object) -> object:
    """A form has a list's only item under the bare name, too."""
    return [value] if isinstance(value, str) else value


Words = Annotated[
    list[Word], Field(max_length=MAX_WORDS), at_most(MAX_WORDS), BeforeValidator(_one_as_list)
]
Languages = Annotated[
    list[Language], Field(max_length=64), at_most(64), BeforeValidator(_one_as_list)
]


class AudioRequest(RequestFields):
    """Fields of both questions; a form's values are text, so numbers may be."""

    task: ClassVar[str]

    file: Annotated[bytes, Field(min_length=1)]
    model: str | None = None
    prompt: Text | None = None
    temperature: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    stream: bool | None = None

    def check(self) -> None:
        """Raise ApiError for what the model cannot do."""
        super().check()
        if self.response_format in ("srt", "vtt"):
            asked = f"{self.response_format}: this model makes no time stamps, so it"
            raise unsupported("response_format", asked)
        if self.response_format == "diarized_json":
            raise unsupported("response_format", "diarized_json: telling speakers apart")

    @property
    def instruction(self) -> str:
        """The instruction to the model, after the audio."""
        raise NotImplementedError

    @property
    def text_language(self) -> str:
        """The language of the answer."""
        raise NotImplementedError

    @property
    def only_language(self) -> str | None:
        """Returns the language of the audio, if it is given."""
        return None

    @property
    def context(self) -> str:
        """Returns the text that a transcriber has before it."""
        return self.prompt or ""


class TranscriptionRequest(AudioRequest):
    """The transcript of audio in its own language."""

    task = "transcribe"

    language: Language | None = None
    languages: Languages | None = None
    keywords: Words | None = None
    timestamp_granularities: (
        Annotated[list[Literal["word", "segment"]], BeforeValidator(_one_as_list)] | None
    ) = None
    include: Annotated[list[Literal["logprobs"]], BeforeValidator(_one_as_list)] | None = None
    chunking_strategy: str | Json | None = None
    known_speaker_names: Words | None = None
    known_speaker_references: list[str] | None = None

    def check(self) -> None:
        """Raise ApiError for what the model cannot do, and for what would have no effect."""
        super().check()
        if self.stream and self.response_format != "json":
            raise invalid("response_format", "must be json with stream")
        if self.include and self.response_format != "json":
            raise invalid("include", "needs the response_format json")
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise invalid("timestamp_granularities", "needs the response_format verbose_json")
        if "word" in (self.timestamp_granularities or ()):
            raise unsupported("timestamp_granularities", "Time stamps of words")
        if self.chunking_strategy not in (None, "auto"):
            raise unsupported("chunking_strategy", "A chunking_strategy other than auto")
        for name in ("known_speaker_names", "known_speaker_references"):
            if getattr(self, name):
                raise unsupported(name)

    @property
    def instruction(self) -> str:
        """The instruction to the model, after the audio."""
        parts = ["Transcribe the audio into text, word for word. Answer with the text only."]
        if self.language:
            parts.append(f"The language of the audio is {self.language}.")
        if self.languages:
            parts.append(f"The language of the audio is one of: {', '.join(self.languages)}.")
        if self.keywords:
            parts.append(f"These words may be said: {', '.join(self.keywords)}.")
        if self.prompt:
            parts.append(f"{STYLE} {self.prompt}")
        return " ".join(parts)

    @property
    def only_language(self) -> str | None:
        """Returns the language of the audio; raises ApiError for several, or for two fields."""
        named = [*([self.language] if self.language else []), *(self.languages or [])]
        if len({name.lower() for name in named}) > 1:
            raise unsupported("languages", "languages: with a transcriber, more than one language")
        return named[0] if named else None

    @property
    def context(self) -> str:
        """Returns the words that may be said, and the text before."""
        return " ".join(filter(None, [", ".join(self.keywords or []), self.prompt]))

    @property
    def text_language(self) -> str:
        """Returns the language that the client has given: the model does not report it."""
        return self.language or "unknown"


class TranslationRequest(AudioRequest):
    """The transcript of audio in English."""

    task = "translate"

    def check(self) -> None:
        """Raise ApiError for what the model cannot do."""
        super().check()
        if self.stream:
            raise unsupported("stream")

    @property
    def instruction(self) -> str:
        """The instruction to the model, after the audio."""
        instruction = (
            "Translate the speech in the audio into English. Answer with the translation only."
        )
        return f"{instruction} {STYLE} {self.prompt}" if self.prompt else instruction

    @property
    def text_language(self) -> str:
        """Returns the language in OpenAI's spelling."""
        return "english"


T = TypeVar("T", bound=AudioRequest)


def request_of(kind: type[T], fields: dict[str, object]) -> T:
    """Checked fields; `input_audio: {data, format}` stands for a file in JSON. ApiError."""
    if "input_audio" in fields:
        others = {name: value for name, value in fields.items() if name != "input_audio"}
        fields = {**others, "file": _decoded(fields["input_audio"])}
    request = parse(kind, fields)
    request.check()
    return request


def _decoded(audio: object) -> bytes:
    data = audio.get("data") if isinstance(audio, dict) else None
    place = "input_audio.data"
    return decoded(bare_base64(data, place, "send the file itself"), place)
