"""The small model's vocabulary, and what is held out of it."""

import hashlib
from collections.abc import Sequence


def words_of(line: str) -> list[str]:
    return line.split()


NAMES = words_of("Anna Ben Clara David Emma Frank Grace Henry Julia Kevin Laura Martin Nina Oliver")
COLOURS = words_of("red green blue yellow orange purple black white")
SHAPES = words_of("circle square triangle")
DAYS = words_of("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words_of(
    "January February March April May June July August September October November December"
)
ONES = words_of(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
TENS = words_of("twenty thirty forty fifty sixty seventy eighty ninety")
ANIMALS = {
    "cow": ("moo", "on a farm"),
    "dog": ("woof", "in a house"),
    "cat": ("meow", "in a house"),
    "duck": ("quack", "by a lake"),
    "sheep": ("baa", "on a farm"),
    "lion": ("roar", "in the grass"),
    "horse": ("neigh", "on a farm"),
    "frog": ("croak", "by a lake"),
    "bird": ("tweet", "in a tree"),
    "bear": ("growl", "in the forest"),
}
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "England": "London",
    "Greece": "Athens",
    "Austria": "Vienna",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Cuba": "Havana",
    "Poland": "Warsaw",
}
THINGS = {
    "banana": "yellow",
    "tomato": "red",
    "sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "carrot": "orange",
    "plum": "purple",
    "sun": "yellow",
    "cherry": "red",
    "milk": "white",
    "leaf": "green",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "old": "new",
    "day": "night",
    "up": "down",
    "left": "right",
    "happy": "sad",
    "open": "closed",
    "early": "late",
    "long": "short",
    "light": "dark",
    "full": "empty",
    "wet": "dry",
}
PLACES = words_of(
    "garden house forest city school market river mountain station beach kitchen park"
)
ADJECTIVES = words_of("little big old young happy quiet brave tired hungry friendly clever funny")
PEOPLE = words_of("boy girl farmer teacher doctor king queen baker sailor painter singer driver")
VERBS = words_of("walked ran looked came went jumped danced slept waited sat stayed worked")
FOODS = words_of("bread apples soup cheese cake rice fish cookies honey salad pasta pancakes")
OBJECTS = words_of("book lamp table chair window door bottle letter box key map flower stone boat")
SKIES = words_of("sunny rainy cloudy")
TIMES = words_of("today yesterday tonight now again soon")


def number(value: int) -> str:
    """The words of 0 to 99."""
    if value < 20:
        return ONES[value]
    ten = TENS[value // 10 - 2]
    return ten if value % 10 == 0 else f"{ten} {ONES[value % 10]}"


def is_held_out(text: str, share: int = 12) -> bool:
    """Whether a text is of the one part in `share` that is judged and never trained."""
    return hashlib.blake2b(text.lower().encode(), digest_size=4).digest()[0] % share == 0


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def _words() -> list[str]:
    groups: list[Sequence[str]] = [NAMES, COLOURS, SHAPES, DAYS, MONTHS, ONES, TENS]
    groups += [list(ANIMALS), list(CAPITALS), list(CAPITALS.values()), list(THINGS)]
    groups += [list(OPPOSITES), list(OPPOSITES.values()), PLACES, ADJECTIVES, PEOPLE, VERBS]
    groups += [FOODS, OBJECTS, TIMES, [sound for sound, _ in ANIMALS.values()]]
    groups.append(
        words_of(
            "hello thank you please good morning evening picture sound model talk listen see "
            "draw know only toy help can comes after before plus minus is are the capital of "
            "opposite says lives nice to meet your name weather sunny rainy cloudy degrees "
            "was there once upon time here draw background digit number shape first second "
            "middle top and a in on i at near very we eat give my has from likes it am do not "
            "that how with said all then home shapes fine farm by lake like an tree what "
            "which tell say who where bottom center favorite color live city country age hi "
            "hey goodbye bye welcome soon"
        )
    )
    return sorted({word for group in groups for word in group})


WORDS = _words()
