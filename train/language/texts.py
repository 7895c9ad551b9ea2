"""Conversations in text, questions to ask by voice, and texts to speak; all from a seed."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from language.questions import FEW, SAID, question
from language.sentences import picture_answer, salad, sentence
from world import CAPITALS, COLOURS, FOODS, NAMES, SHAPES, is_held_out, number

SALAD = 55  # parts in 100 of what is spoken
SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class Talk:
    """Turns of a user and an assistant, the last an answer; `kind` names the task."""

    kind: str
    turns: tuple[str, ...]
    system: str = ""

    @property
    def question(self) -> str:
        """The last user turn."""
        return self.turns[-2]

    @property
    def answer(self) -> str:
        """What is to be learned."""
        return self.turns[-1]


def talk(pick: random.Random, held_out: bool = False) -> Talk:
    """A conversation without pictures, sounds and tools."""
    while True:
        made = _talk(pick)
        # A turn before may be one that is judged elsewhere; what is asked may not.
        if made.kind in FEW or is_held_out(" ".join(_split_by(made))) == held_out:
            return made


def _split_by(made: Talk) -> tuple[str, ...]:
    return made.turns[:-1:2] if made.kind == "memory" else (made.question,)


def _talk(pick: random.Random) -> Talk:
    system = SYSTEM if pick.random() < 0.15 else ""
    chance = pick.random()
    if chance < 0.1:
        return Talk("memory", _memory(pick), system)
    if chance < 0.17:
        return Talk("json", _json(pick), system)
    kind, asked, answer = question(pick, (), None)
    if chance < 0.29:
        _, before, reply = question(pick)
        return Talk(kind, (before, reply, asked, answer), system)
    return Talk(kind, (asked, answer), system)


def _memory(pick: random.Random) -> tuple[str, ...]:
    chance = pick.randrange(4)
    if chance < 2:
        name = pick.choice(NAMES)
        first = pick.choice(
            ("My name is {}.", "I am {}.", "Hello, my name is {}!", "Hello, I am {}.")
        ).format(name)
        reply = f"Nice to meet you, {name}."
        asked = pick.choice(
            ("What is my name?", "Who am I?", "Do you know my name?", "Tell me my name.")
        )
        answer = f"Your name is {name}."
    elif chance == 2:
        colour = pick.choice(COLOURS)
        first = pick.choice(("My favorite color is {}.", "I like {} best.")).format(colour)
        reply = f"I see, you like {colour}."
        asked = pick.choice(("What is my favorite color?", "Which color do I like?"))
        answer = f"Your favorite color is {colour}."
    else:
        city = pick.choice(list(CAPITALS.values()))
        first = pick.choice(("I live in {}.", "I am from {}.", "My city is {}.")).format(city)
        reply = f"I see, you live in {city}."
        asked = pick.choice(("Where do I live?", "What is my city?", "Do you know where I live?"))
        answer = f"You live in {city}."
    between: tuple[str, ...] = ()
    if pick.random() < 0.3:
        between = question(pick)[1:]
    turns = (first, reply, *between, asked, answer)
    return turns[: pick.choice((2, len(turns), len(turns), len(turns)))]


def _json(pick: random.Random) -> tuple[str, str]:
    made: dict[str, str | int]
    chance = pick.randrange(4)
    if chance == 0:
        made = {"color": pick.choice(COLOURS), "shape": pick.choice(SHAPES)}
        about = "the {color} {shape}".format(**made)
    elif chance == 1:
        country = pick.choice(list(CAPITALS))
        made = {"country": country, "capital": CAPITALS[country]}
        about = f"the capital of {country}"
    elif chance == 2:
        age = pick.randrange(1, 100)
        made = {"name": pick.choice(NAMES), "age": age}
        about = f"{made['name']} is {age} years old"
    else:
        count = pick.randrange(1, 100)
        made = {"name": pick.choice(NAMES), "food": pick.choice(FOODS), "count": count}
        about = f"{made['name']} has {number(count)} {made['food']}"
    keys = list(made)
    names = " and ".join((", ".join(keys[:-1]), keys[-1]))
    form = pick.choice(
        (
            "Answer in JSON with {keys}: {about}.",
            "As JSON with the keys {keys}: {about}.",
            "Give me JSON with {keys} of this: {about}.",
            "Write JSON with the keys {keys}: {about}.",
        )
    )
    return form.format(keys=names, about=about), json.dumps(made)


def sloppy(pick: random.Random, text: str) -> str:
    """A turn as some people type: now and then in small letters, or without its end."""
    if pick.random() < 0.12:
        text = text.lower()
    if pick.random() < 0.12:
        text = text.rstrip(".?!")
    return text or "hello"


def spoken(pick: random.Random, held_out: bool | None = False) -> tuple[str, str, str]:
    """Kind, question and answer of one that is asked by voice: digits are no words."""
    while True:
        kind, asked, answer = question(pick, SAID, held_out)
        if not any(character.isdigit() or character in "+-" for character in asked):
            return kind, asked, answer


def to_speak(pick: random.Random, held_out: bool = False) -> str:
    """A text of one to three sentences for the voice."""
    makers: tuple[tuple[float, Callable[[], str]], ...] = (
        (SALAD, lambda: salad(pick)),
        (20, lambda: sentence(pick)),
        (5, lambda: f"{sentence(pick)} {sentence(pick)}"),
        (6, lambda: picture_answer(pick)),
        (14, lambda: talk(pick).answer),
    )
    while True:
        text = pick.choices(makers, [weight for weight, _ in makers])[0][1]()
        if is_held_out(text) == held_out and 3 <= len(text) <= 110 and "{" not in text:
            return text
