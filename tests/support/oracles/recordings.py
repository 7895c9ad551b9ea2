"""Questions spoken by flite, in tests/recordings/, and what the ear of train/ makes of a sound."""

from functools import cache
from pathlib import Path

from ear import RATE_HZ, Ear
from support.media.audio import samples_of

FOLDER = Path(__file__).parents[2] / "recordings"
SAID = {
    "seven_plus_five": "What is seven plus five?",
    "day_after_monday": "Which day comes after Monday?",
    "cow": "What does a cow say?",
    "capital_of_france": "What is the capital of France?",
    "count": "Count from three to seven.",
    "who_are_you": "Who are you?",
    "color_of_the_circle": "What color is the circle?",
    "opposite": "What is the opposite of big?",
    "what_is_in_the_picture": "What is in the picture?",
}


def recording(name: str) -> bytes:
    """A recorded question, a file in Opus."""
    return (FOLDER / f"{name}.opus").read_bytes()


@cache
def ear() -> Ear:
    """One recogniser a process: it takes some seconds to make."""
    return Ear()


def heard(data: bytes) -> str:
    """The words of a sound file, in small letters."""
    return " ".join(ear().hear(samples_of(data, RATE_HZ)))
