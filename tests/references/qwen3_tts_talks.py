"""What both the qwen-tts package and ours are asked to speak: no library but numpy."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from references.qwen3_tts_inputs import sound

MODELS = ("qwen3-tts", "qwen3-tts-design", "qwen3-tts-base-0.6b")  # as `omnistage tiny` has them
MAX_FRAMES = 40
STRIDE = 97  # of the recorded samples: prime to those of a frame, so that all phases are there
SAMPLES_A_FRAME = 1920


@dataclass(frozen=True, slots=True)
class Talk:
    """One text, and how it is to be spoken; `is_whole`: all of it before the speech begins."""

    name: str
    text: str
    is_whole: bool
    language: str | None = None
    speaker: str | None = None
    instructions: str = ""
    sound_length: int = 0  # of a reference sound, in samples
    sound_text: str | None = None


def sound_of(talk: Talk) -> npt.NDArray[np.float32]:
    """The reference sound, mono at 24 kHz."""
    return sound(talk.sound_length)


_GREETING = "Hello, who are you?"
_LONG = "A longer text to be spoken, with a second half. And more! \u4f60\u597d\uff0c12."


def _custom_voice(is_whole: bool) -> list[Talk]:
    return [
        Talk("plain", _GREETING, is_whole, speaker="ryan"),
        Talk("told", "Yes.", is_whole, "english", "vivian", "Be very glad."),
        Talk("dialect", _LONG, is_whole, speaker="eric"),
        Talk("dialect in chinese", "Hm", is_whole, "chinese", "eric"),
        Talk("no dialect in english", "Hm", is_whole, "english", "eric"),
    ]


def _voice_design(is_whole: bool) -> list[Talk]:
    return [
        Talk("described", _GREETING, is_whole, instructions="A low, slow voice."),
        Talk("in a language", _LONG, is_whole, "chinese", instructions="Young."),
    ]


def _base(is_whole: bool) -> list[Talk]:
    return [
        Talk("a voice", _GREETING, is_whole, sound_length=24_000),
        Talk("a voice in a language", _LONG, is_whole, "english", sound_length=19_200),
        # The sound has fewer frames than its words and the text have tokens, then more.
        Talk(
            "short sound", _LONG, is_whole, "chinese", sound_length=19_200, sound_text="What I said"
        ),
        Talk("long sound", "Yes.", is_whole, sound_length=48_000, sound_text="Ah."),
    ]


_OF = {
    "qwen3-tts": _custom_voice,
    "qwen3-tts-design": _voice_design,
    "qwen3-tts-base-0.6b": _base,
}


def talks(model: str) -> list[Talk]:
    """Of one model: each with its text before the speech, and while it is spoken."""
    return [talk for is_whole in (True, False) for talk in _OF[model](is_whole)]


def key(model: str, talk: Talk, what: str) -> str:
    """The name of a recorded tensor."""
    return f"{model}/{'whole' if talk.is_whole else 'streamed'}/{talk.name}/{what}"


def checkpoint_hash(folder: Path) -> str:
    """Of the files that answers depend on."""
    digest = hashlib.sha256()
    for name in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
    ):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
