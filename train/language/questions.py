"""Questions of one turn and their answers, from a seed.

A question belongs to the held-out part by a hash of its words, so what is judged was never trained.
"""

import random
from collections.abc import Callable, Sequence

from language.sentences import sentence, story
from world import (
    ANIMALS,
    CAPITALS,
    COLOURS,
    DAYS,
    MONTHS,
    OBJECTS,
    OPPOSITES,
    PEOPLE,
    PLACES,
    SHAPES,
    THINGS,
    capital,
    is_held_out,
    number,
)

ABOUT_ME = "I am Small, a toy model. I can talk, listen, see and draw."
UNKNOWN = "I do not know that. I am only a toy."


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


def _draw(pick: random.Random) -> tuple[str, str]:
    ground = pick.choice(COLOURS)
    colour = pick.choice([one for one in COLOURS if one != ground])
    what = pick.choice((*SHAPES, *map(number, range(10))))
    article = "an" if colour[0] in "aeiou" else "a"
    form = pick.choice(
        (
            "Draw {}.",
            "Please draw {}.",
            "Can you draw {}?",
            "Show me {}.",
            "A picture of {}, please.",
        )
    )
    wanted = f"{article} {colour} {what}"
    behind = pick.choice((f" on {ground}", f" on {ground}", f" on a {ground} background", ""))
    shown = f"{wanted} on {ground}" if behind else wanted
    return form.format(wanted + behind), f"Here is {shown}."


def _weather(pick: random.Random) -> tuple[str, str]:
    return weather(pick)[0], UNKNOWN


def weather(pick: random.Random) -> tuple[str, str]:
    """A question about the weather, and its city."""
    city = pick.choice(list(CAPITALS.values()))
    form = pick.choice(
        (
            "What is the weather in {}?",
            "How is the weather in {}?",
            "What's the weather in {}?",
            "Tell me the weather in {}.",
            "What is the weather like in {}?",
            "Is it sunny in {}?",
            "Is it rainy in {} today?",
            "How is the weather in {} today?",
            "What is the weather in {} now?",
            "Please tell me the weather in {}.",
        )
    )
    return form.format(city), city


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
    (2, "repeat", _repeat),
    (1, "draw", _draw),
    (0.6, "weather", _weather),
    (1, "story", _story),
    (1, "unknown", _unknown),
)
SAID = ("sum", "next", "count", "fact", "greeting", "about", "thanks", "draw", "weather")
FEW = ("greeting", "about", "thanks")  # all of them are trained


def question(
    pick: random.Random, kinds: Sequence[str] = (), held_out: bool | None = False
) -> tuple[str, str, str]:
    """Kind, question and answer of one part; a kind of few is in both. None: of either part."""
    tasks = [task for task in TASKS if not kinds or task[1] in kinds]
    while True:
        _, kind, make = pick.choices(tasks, [weight for weight, *_ in tasks])[0]
        asked, answer = make(pick)
        if held_out is None or kind in FEW or is_held_out(asked) == held_out:
            return kind, asked, answer
