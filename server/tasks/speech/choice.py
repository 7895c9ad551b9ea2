"""Whose voice a text is spoken with, and how: what a model offers of what a request asks."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from omnistage.server.common.errors import ApiError, invalid, unsupported
from omnistage.server.common.served import DEFAULT_VOICE
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium
from omnistage.server.tasks.speech.reference import Reference, medium_of, samples_of
from omnistage.server.tasks.speech.stored_voices import StoredVoices
from omnistage.server.tasks.speech.voice_files import VoiceRecord
from omnistage.stages.messages.to_gateway import Speech

AUTO = "auto"
PLAIN = Speech()  # of a stage that says no more than the names of its voices
# What clients may call a language beside its name.
CODES = {
    "zh": "chinese",
    "en": "english",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "fr": "french",
    "ru": "russian",
    "pt": "portuguese",
    "es": "spanish",
    "it": "italian",
}

Task = Literal["CustomVoice", "VoiceDesign", "Base"]


@dataclass(frozen=True, slots=True)
class VoiceChoice:
    """A name that the model knows, a stored voice, a sound that came with the request, or none."""

    speaker: str | None = None
    stored: VoiceRecord | None = None
    sound: Medium | None = None
    text: str | None = None  # what is said in the sound

    @property
    def has_sound(self) -> bool:
        """Returns whether the voice is one of a sound."""
        return self.stored is not None or self.sound is not None

    async def reference(
        self, voices: StoredVoices, media: MediaLoader, until: ExitStack | None = None
    ) -> Reference | None:
        """The sound that is spoken with, if it is one; raises ApiError.

        One that came with the request takes room among the media until the stack ends.
        """
        if self.stored is not None:
            kept = await voices.reference(self.stored)
            return Reference(kept.samples, kept.key, self.text)
        if self.sound is None:
            return None
        place = self.sound.place
        given = await media.read_one(
            self.sound, lambda data: Reference.of(samples_of(data, place), self.text)
        )
        if until is not None:
            await media.keep(given.samples.nbytes, until)
        return given


@dataclass(frozen=True, slots=True)
class Asked:
    """The voice that a request names."""

    voice: str | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    speaker_only: bool | None = None  # how the sound is spoken is not to be heeded


def chosen_voice(
    asked: Asked, speech: Speech, speakers: Sequence[str], voices: StoredVoices
) -> VoiceChoice:
    """Returns what is spoken with; raises ApiError for what the model has not."""
    if asked.ref_audio is not None:
        choice = _given_sound(asked, asked.ref_audio, speech)
    else:
        choice = _named(asked.voice, speech, speakers, voices)
    if asked.ref_text is not None and choice.sound is None:
        raise invalid("ref_text", "needs ref_audio, whose words it says")
    if asked.speaker_only is not None and not choice.has_sound:
        raise invalid("x_vector_only_mode", "needs a stored voice or ref_audio")
    if speech.needs_sound and not choice.has_sound:
        message = "This model speaks with the voice of a sound: name a stored voice, or send one as"
        raise ApiError(400, f"{message} ref_audio.", param="voice", code="invalid_value")
    if not choice.has_sound:
        return choice
    text = asked.ref_text if choice.stored is None else choice.stored.ref_text
    if asked.speaker_only is False and text is None:
        raise invalid("x_vector_only_mode", "must be true without the words of the sound")
    return VoiceChoice(None, choice.stored, choice.sound, None if asked.speaker_only else text)


def _given_sound(asked: Asked, ref_audio: str, speech: Speech) -> VoiceChoice:
    if not speech.takes_sound:
        raise unsupported("ref_audio", "ref_audio: with this model, a voice made from a sound")
    if asked.voice is not None and asked.voice.lower() != DEFAULT_VOICE:
        raise invalid("ref_audio", "cannot be given beside a voice")
    return VoiceChoice(sound=medium_of(ref_audio, "ref_audio"))


def _named(
    called: str | None, speech: Speech, speakers: Sequence[str], voices: StoredVoices
) -> VoiceChoice:
    if called is None:
        return VoiceChoice()
    is_plain = replace(speech, takes_pieces=False) == PLAIN
    if is_plain and not speakers:  # its names are not known yet, or to nobody
        return VoiceChoice(called)
    for speaker in speakers:
        if speaker.lower() == called.lower():
            return VoiceChoice(speaker)
    if called.lower() == DEFAULT_VOICE:
        return VoiceChoice()
    stored = voices.find(called)
    if stored is not None and speech.takes_sound:
        return VoiceChoice(stored=stored)
    if stored is not None:
        raise unsupported("voice", "voice: with this model, a voice made from a sound")
    raise invalid(
        "voice", f"{called!r} is unknown; allowed: {', '.join([*speakers, DEFAULT_VOICE])}"
    )


def chosen_language(language: str | None, speech: Speech) -> str | None:
    """Returns the language in the model's words; None to detect it. Raises ApiError."""
    if language is None or language.lower() == AUTO:
        return None
    if not speech.languages:
        raise unsupported("language", "language: with this model")
    called = CODES.get(language.lower(), language.lower())
    for known in speech.languages:
        if known.lower() == called:
            return known
    allowed = ", ".join([AUTO, *speech.languages])
    raise invalid("language", f"{language!r} is unknown; allowed: {allowed}")


def check_task(task: Task | None, speech: Speech) -> None:
    """Raise ApiError if a model is asked for another one's task."""
    if task not in (None, task_of(speech)):
        raise invalid("task_type", f"must be {task_of(speech)} with this model")


def task_of(speech: Speech) -> Task:
    """Returns what vllm-omni calls what a model does."""
    if speech.needs_sound:
        return "Base"
    return "VoiceDesign" if speech.needs_instructions else "CustomVoice"


def check_instructions(instructions: str | None, speech: Speech) -> None:
    """Raise ApiError for a model that is told no voice."""
    if speech.needs_instructions and not (instructions or "").strip():
        raise invalid("instructions", "must describe the voice: this model has no other")
