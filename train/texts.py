"""Questions and answers of the small model's world, and sentences to speak; all from a seed.

A question belongs to the held-out part by a hash of its words, so what is judged was never trained.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from world import (
    ADJECTIVES,
    ANIMALS,
    CAPITALS,
    COLOURS,
    DAYS,
    FOODS,
    MONTHS,
    NAMES,
    OBJECTS,
    ONES,
    OPPOSITES,
    PEOPLE,
    PLACES,
    SHAPES,
    THINGS,
    TIMES,
    VERBS,
    WORDS,
    capital,
    is_held_out,
    number,
)

SYSTEM = "You are a helpful assistant."
ABOUT_ME = "I am Small, a toy model. I can talk, listen, see and draw."
UNKNOWN = "I do not know that. I am only a toy."


@dataclass(frozen=True)
class Talk:
    """Turns of a user and an assistant, the last an answer; `kind` names the task."""

    kind: str
    turns: tuple[str, ...]
    system: str = ""
    media: tuple[object, ...] = field(default=())

    @property
    def question(self) -> str:
        """The last user turn."""
        return self.turns[-2]

    @property
    def answer(self) -> str:
        """What is to be learned."""
        return self.turns[-1]


def sentence(pick: random.Random) -> str:
    """One to speak or repeat: from a pattern, or a row of unrelated words."""
    one = pick.choice
    animal, person, place, thing = one(list(ANIMALS)), one(PEOPLE), one(PLACES), one(OBJECTS)
    count = number(pick.randrange(2, 100))
    patterns: Sequence[Callable[[], str]] = (
        lambda: f"the {one(ADJECTIVES)} {person} {one(VERBS)} in the {place}",
        lambda: f"{one(NAMES)} has {count} {one(FOODS)}",
        lambda: f"the {animal} {one(VERBS)} near the {place} {one(TIMES)}",
        lambda: f"there is a {one(COLOURS)} {thing} on the {one(OBJECTS)}",
        lambda: f"on {one(DAYS)} {one(NAMES)} {one(VERBS)} to the {place}",
        lambda: f"we eat {one(FOODS)} and {one(FOODS)} in {one(MONTHS)}",
        lambda: f"the {one(COLOURS)} {one(SHAPES)} is very {one(list(OPPOSITES))}",
        lambda: (
            f"my {thing} is {one(list(OPPOSITES.values()))} and your {one(OBJECTS)} is "
            f"{one(ADJECTIVES)}"
        ),
        lambda: f"{one(NAMES)} and {one(NAMES)} are at the {place}",
        lambda: f"the number is {count}",
        lambda: f"please give the {thing} to the {person}",
        lambda: f"the {person} from {one(list(CAPITALS))} likes the {animal}",
        lambda: " ".join(pick.sample(WORDS, pick.randrange(2, 8))),
    )
    made = capital(one(patterns)())
    return made + pick.choice(".....!?")


def story(animal: str, place: str) -> str:
    """Three sentences, always the same ones of an animal and a place."""
    sound, _ = ANIMALS[animal]
    return (
        f"Once there was a little {animal} in the {place}. It said {sound} all day. "
        f"Then it went home and slept."
    )


def _sums(pick: random.Random) -> tuple[str, str]:
    first, second = pick.randrange(0, 21), pick.randrange(0, 21)
    minus = pick.random() < 0.4
    if minus and second > first:
        first, second = second, first
    total = first - second if minus else first + second
    sign = "minus" if minus else "plus"
    spoken = f"{number(first)} {sign} {number(second)}"
    asked = pick.choice(
        (spoken, spoken, f"{first} {sign} {second}", f"{first}{'-+'[not minus]}{second}")
    )
    form = pick.choice(
        ("What is {}?", "How much is {}?", "Tell me, what is {}?", "{}?", "Calculate {}.")
    )
    return capital(form.format(asked)), f"{capital(spoken)} is {number(total)}."


def _next(pick: random.Random) -> tuple[str, str]:
    names = pick.choice((DAYS, MONTHS))
    index = pick.randrange(len(names))
    side = pick.choice(("after", "before"))
    other = names[(index + (1 if side == "after" else -1)) % len(names)]
    what = "day" if names is DAYS else "month"
    form = pick.choice(
        (
            "Which {} comes {} {}?",
            "What {} comes {} {}?",
            "Tell me the {} {} {}.",
            "What is the {} {} {}?",
        )
    )
    return form.format(what, side, names[index]), f"{other} comes {side} {names[index]}."


def _count(pick: random.Random) -> tuple[str, str]:
    first = pick.randrange(1, 16)
    last = first + pick.randrange(2, 6)
    words = [number(value) for value in range(first, last + 1)]
    form = pick.choice(
        ("Count from {} to {}.", "Please count from {} to {}.", "Can you count from {} to {}?")
    )
    return form.format(words[0], words[-1]), capital(", ".join(words)) + "."


def _fact(pick: random.Random) -> tuple[str, str]:
    kind = pick.randrange(5)
    please = pick.choice(("", "", "Please tell me: ", "Tell me, "))
    if kind == 0:
        animal = pick.choice(list(ANIMALS))
        form = pick.choice(
            ("What does a {} say?", "What does the {} say?", "Which sound does a {} make?")
        )
        return _asked(please, form.format(animal)), f"A {animal} says {ANIMALS[animal][0]}."
    if kind == 1:
        animal = pick.choice(list(ANIMALS))
        form = pick.choice(
            ("Where does a {} live?", "Where does the {} live?", "Where do I find a {}?")
        )
        return _asked(please, form.format(animal)), f"A {animal} lives {ANIMALS[animal][1]}."
    if kind == 2:
        country = pick.choice(list(CAPITALS))
        form = pick.choice(
            ("What is the capital of {}?", "Which city is the capital of {}?", "The capital of {}?")
        )
        return _asked(
            please, form.format(country)
        ), f"The capital of {country} is {CAPITALS[country]}."
    if kind == 3:
        thing = pick.choice(list(THINGS))
        form = pick.choice(
            ("What color is a {}?", "What color is the {}?", "Which color does a {} have?")
        )
        return _asked(please, form.format(thing)), f"The {thing} is {THINGS[thing]}."
    word = pick.choice(list(OPPOSITES))
    form = pick.choice(("What is the opposite of {}?", "The opposite of {}?", "What is not {}?"))
    return _asked(please, form.format(word)), f"The opposite of {word} is {OPPOSITES[word]}."


def _asked(please: str, question: str) -> str:
    return please + question[0].lower() + question[1:] if please else question


def _greeting(pick: random.Random) -> tuple[str, str]:
    hello = pick.choice(("Hello", "Hi", "Good morning", "Good evening", "Hey", "Hello there"))
    end = pick.choice((".", "!", "", ", how are you?"))
    if "how" in end:
        return hello + end, "I am fine, thank you. How can I help you?"
    return hello + end, "Hello! How can I help you?"


def _about(pick: random.Random) -> tuple[str, str]:
    asked = pick.choice(
        (
            "Who are you",
            "What are you",
            "What is your name",
            "What can you do",
            "Tell me about yourself",
        )
    )
    return asked + pick.choice(("?", "?", "")), ABOUT_ME


def _thanks(pick: random.Random) -> tuple[str, str]:
    if pick.random() < 0.5:
        return pick.choice(("Thank you", "Thanks", "Thank you very much")) + pick.choice(".!"), (
            "You are welcome."
        )
    return pick.choice(("Goodbye", "Bye", "Good night", "See you")) + pick.choice(".!"), (
        "Goodbye! See you soon."
    )


def _repeat(pick: random.Random) -> tuple[str, str]:
    text = sentence(pick)
    form = pick.choice(
        ("Say: {}", "Please say: {}", "Repeat: {}", "Repeat after me: {}", "Say this: {}")
    )
    return form.format(text), text


def _story(pick: random.Random) -> tuple[str, str]:
    animal, place = pick.choice(list(ANIMALS)), pick.choice(PLACES)
    form = pick.choice(
        (
            "Tell me a story about a {} in the {}.",
            "Tell a story of a {} in a {}.",
            "A short story about a {} in the {}, please.",
        )
    )
    return form.format(animal, place), story(animal, place)


def _unknown(pick: random.Random) -> tuple[str, str]:
    start = pick.choice(
        (
            "Why is the",
            "How does the",
            "When will the",
            "Explain the",
            "Write a poem about the",
            "Who made the",
            "Translate the",
            "What is the meaning of the",
            "How old is the",
        )
    )
    words = " ".join(pick.sample(PLACES + OBJECTS + PEOPLE, pick.randrange(1, 4)))
    return f"{start} {words}?", UNKNOWN


TASKS: tuple[tuple[float, str, Callable[[random.Random], tuple[str, str]]], ...] = (
    (4, "sum", _sums),
    (2, "next", _next),
    (1.5, "count", _count),
    (3, "fact", _fact),
    (1, "greeting", _greeting),
    (1, "about", _about),
    (0.5, "thanks", _thanks),
    (3, "repeat", _repeat),
    (1, "story", _story),
    (1, "unknown", _unknown),
)
SAID = ("sum", "next", "count", "fact", "greeting", "about", "thanks")


def question(
    pick: random.Random, kinds: Sequence[str] = (), held_out: bool = False
) -> tuple[str, str, str]:
    """Kind, question and answer of one part; few questions of a kind: all of them are trained."""
    tasks = [task for task in TASKS if not kinds or task[1] in kinds]
    while True:
        _, kind, make = pick.choices(tasks, [weight for weight, *_ in tasks])[0]
        asked, answer = make(pick)
        if kind in ("greeting", "about", "thanks"):
            return kind, asked, answer
        if is_held_out(asked) == held_out:
            return kind, asked, answer


def talk(pick: random.Random, held_out: bool = False) -> Talk:
    """A conversation without pictures and sounds."""
    system = SYSTEM if pick.random() < 0.15 else ""
    chance = pick.random()
    if chance < 0.08:
        name = pick.choice(NAMES)
        first = pick.choice(("My name is {}.", "I am {}.", "Hello, my name is {}!")).format(name)
        asked = pick.choice(("What is my name?", "Who am I?", "Do you know my name?"))
        turns = (first, f"Nice to meet you, {name}.", asked, f"Your name is {name}.")
        return Talk("memory", turns[: pick.choice((2, 4, 4))], system)
    kind, asked, answer = question(pick, (), held_out)
    if chance < 0.2:
        _, before, reply = question(pick)
        return Talk(kind, (before, reply, asked, answer), system)
    return Talk(kind, (asked, answer), system)


def spoken(pick: random.Random, held_out: bool = False) -> tuple[str, str, str]:
    """Kind, question and answer of one that is asked by voice: digits are no words."""
    while True:
        kind, asked, answer = question(pick, SAID, held_out)
        if not any(character.isdigit() or character in "+-" for character in asked):
            return kind, asked, answer


def to_speak(pick: random.Random, held_out: bool = False) -> str:
    """A text of one to three sentences for the voice."""
    while True:
        chance = pick.random()
        if chance < 0.5:
            text = sentence(pick)
        elif chance < 0.6:
            text = f"{sentence(pick)} {sentence(pick)}"
        elif chance < 0.65:
            text = picture_answer(pick)
        else:
            text = talk(pick).answer
        if is_held_out(text) == held_out and 3 <= len(text) <= 110:
            return text


def picture_answer(pick: random.Random) -> str:
    """One of the sentences that pictures are answered with."""
    colour, shape, other = pick.choice(COLOURS), pick.choice(SHAPES), pick.choice(COLOURS)
    row, column = pick.choice(("top", "middle", "bottom")), pick.choice(("left", "center", "right"))
    count = pick.randrange(1, 4)
    return pick.choice(
        (
            f"The {shape} is {colour}.",
            f"It is a {shape}.",
            f"A {colour} {shape} on {other}.",
            f"There {'is' if count == 1 else 'are'} {ONES[count]} shape{'s' if count > 1 else ''}.",
            f"The {colour} {shape} is at the {row} {column}.",
            f"The number is {ONES[pick.randrange(10)]}.",
            f"The background is {other}.",
        )
    )
