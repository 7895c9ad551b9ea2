"""Samples of every task from a seed: drawn, written and put together where they are needed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pictures
from language.samples import Picture, Sample, Sound, Writer, picture_marks, sound_marks
from language.texts import SYSTEM, sloppy, talk
from language.tools import tool_talk, tools_turn, weather_call
from pictures import SIZES, Scene, as_sent, ask, draw, scene
from world import ONES

TRANSCRIBE = "Transcribe the audio into text, word for word. Answer with the text only."


@dataclass(frozen=True)
class Asked:
    """What was said in a sound and its answer; "": it is only to be transcribed."""

    kind: str
    sound: Sound
    answer: str = ""
    city: str = ""

    @property
    def words(self) -> str:
        """What is said."""
        return self.sound.words


class Tasks:
    """Makes samples; `asked` of the world, `about` pictures: by their words."""

    def __init__(
        self, asked: Sequence[Asked], about: dict[str, list[Sound]], held_out: bool = False
    ) -> None:
        self._asked, self._about, self._held_out = asked, about, held_out
        self._weather = [one for one in asked if one.city]
        self._writer = Writer()
        self.kinds: dict[str, Callable[[random.Random], Sample]] = {
            "text": self.text,
            "tools": self.tools,
            "seen": self.seen,
            "heard": self.heard,
            "both": self.both,
        }

    def _system(self, pick: random.Random) -> str:
        return SYSTEM if pick.random() < 0.1 else ""

    def text(self, pick: random.Random) -> Sample:
        """A talk without media."""
        one = talk(pick, self._held_out)
        turns = list(one.turns)
        if not self._held_out:
            turns[-2] = sloppy(pick, turns[-2])
        return self._writer.sample(one.kind, turns, one.system)

    def tools(self, pick: random.Random) -> Sample:
        """A talk with a tool, by voice now and then."""
        if self._weather and pick.random() < 0.2:
            one = pick.choice(self._weather)
            turns = (sound_marks(one.sound), weather_call(one.city))
            return self._writer.sample(
                "tool call by voice", turns, tools_turn(pick), sounds=(one.sound,)
            )
        made = tool_talk(pick, self._held_out)
        return self._writer.sample(made.kind, made.turns, made.system)

    def _picture(self, pick: random.Random, made: Scene, size: tuple[int, int]) -> Picture:
        height, width = size
        pixels = as_sent(draw(made, height, pick, width), pick)
        return Picture(pixels, pictures.labels(made))

    def seen(self, pick: random.Random) -> Sample:
        """A question about one picture, or about one of two."""
        size = pick.choice(SIZES)
        if pick.random() < 0.14:
            scenes = [scene(pick, self._held_out) for _ in range(2)]
            two = tuple(self._picture(pick, one, size) for one in scenes)
            asked, answer = two_pictures(pick, scenes)
            marks = "".join(picture_marks(one) for one in two)
            return self._writer.sample("two pictures", (marks + asked, answer), "", two)
        made = scene(pick, self._held_out)
        one = self._picture(pick, made, size)
        asked, answer = ask(made, pick)
        if not self._held_out:
            asked = sloppy(pick, asked)
        marks = picture_marks(one)
        content = f"{asked}{marks}" if pick.random() < 0.15 else f"{marks}{asked}"
        kind = f"picture {kind_of(asked, answer)}"
        return self._writer.sample(kind, (content, answer), self._system(pick), (one,))

    def heard(self, pick: random.Random) -> Sample:
        """A spoken question, or something to write down."""
        one = pick.choice(self._asked)
        marks = sound_marks(one.sound)
        if one.answer and pick.random() < 0.7:
            return self._writer.sample(
                f"spoken {one.kind}", (marks, one.answer), self._system(pick), (), (one.sound,)
            )
        turns = (f"{marks}{TRANSCRIBE}", one.words)
        return self._writer.sample("transcript", turns, sounds=(one.sound,))

    def both(self, pick: random.Random) -> Sample:
        """A spoken question about a picture."""
        while True:
            made = scene(pick, self._held_out)
            asked, answer = ask(made, pick)
            if asked in self._about:
                break
        sound = pick.choice(self._about[asked])
        one = self._picture(pick, made, pick.choice(SIZES))
        parts = [picture_marks(one), sound_marks(sound)]
        if pick.random() < 0.2:
            parts.reverse()
        turns = ("".join(parts), answer)
        return self._writer.sample("spoken about a picture", turns, "", (one,), (sound,))


def kind_of(asked: str, answer: str) -> str:
    """The kind of a question about a picture, by its words."""
    lower = asked.lower()
    if "json" in lower:
        return "json"
    if "background" in lower:
        return "ground"
    if "how many" in lower:
        return "count"
    if "where" in lower:
        return "place"
    if "color" in lower:
        return "color"
    if answer.startswith("The number is"):
        return "digit"
    return "shape"


def two_pictures(pick: random.Random, scenes: Sequence[Scene]) -> tuple[str, str]:
    """A question about the first or the second of two."""
    index = pick.randrange(2)
    one = scenes[index]
    which = ("first", "second")[index]
    if len(one.shapes) > 1 or pick.random() < 0.3:
        return f"What color is the background of the {which} picture?", (
            f"The background is {one.ground}."
        )
    shape = one.shapes[0]
    return f"What is in the {which} picture?", (
        f"The number is {ONES[int(shape.kind)]}."
        if shape.kind.isdigit()
        else f"A {shape.colour} {shape.kind} on {one.ground}."
    )
