"""Sentences to speak or repeat, stories, and what pictures are answered with; all from a seed."""

import random
from collections.abc import Callable, Sequence

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
    SKIES,
    TIMES,
    VERBS,
    WORDS,
    capital,
    number,
)


def sentence(pick: random.Random) -> str:
    """One to speak or repeat: from a pattern, or a row of unrelated words."""
    one = pick.choice
    animal, person, place, thing = one(list(ANIMALS)), one(PEOPLE), one(PLACES), one(OBJECTS)
    value = pick.randrange(2, 100)
    count = str(value) if pick.random() < 0.1 else number(value)
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
    )
    made = capital(one(patterns)())
    return made + pick.choice(".....!?")


def salad(pick: random.Random) -> str:
    """Words without sense: what comes next can only be read from the text."""
    words = [pick.choice(WORDS) for _ in range(pick.randrange(2, 12))]
    if pick.random() < 0.15:
        at = pick.randrange(len(words))
        words[at] = words[at] + ","
    return capital(" ".join(words)).rstrip(",") + pick.choice(".....!?")


def story(animal: str, place: str) -> str:
    """Three sentences, always the same ones of an animal and a place."""
    sound, _ = ANIMALS[animal]
    return (
        f"Once there was a little {animal} in the {place}. It said {sound} all day. "
        f"Then it went home and slept."
    )


def weather_answer(city: str, sky: str, degrees: int) -> str:
    """A sentence that reads a tool's result out."""
    return f"It is {sky} in {city}, with {number(degrees)} degrees."


def picture_answer(pick: random.Random) -> str:
    """One of the sentences that pictures and tools are answered with."""
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
            f"Here is a {colour} {shape} on {other}.",
            weather_answer(
                pick.choice(list(CAPITALS.values())), pick.choice(SKIES), pick.randrange(1, 40)
            ),
        )
    )
