"""Drawings of one to three shapes, from a seed, and prompts that ask for them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from world import COLOURS, capital, is_held_out

KINDS = ("circle", "square", "triangle", "star")
COUNTS = ("zero", "one", "two", "three")
CELLS = (0.2, 0.5, 0.8)
PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the middle", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
SIZES = {"small": 0.16, "": 0.27, "big": 0.38}
SMALL, PAIR = 0.13, 0.18
APART = (0.27, 0.73)
# Words of a relation, and the axis along which the first shape comes first (+) or second (-).
RELATIONS = {
    "left of": (0, 1),
    "to the left of": (0, 1),
    "right of": (0, -1),
    "to the right of": (0, -1),
    "above": (1, 1),
    "over": (1, 1),
    "below": (1, -1),
    "under": (1, -1),
}
STARTS = (
    *("",) * 6,
    *("draw", "draw me", "please draw", "can you draw", "could you draw", "paint", "show me"),
    *("here is", "here is", "here is", "this is"),
    *("a picture of", "a picture of", "an image of", "a drawing of", "draw a picture of"),
    *("make a picture of", "make an image of", "please make a picture of", "i want"),
    *("i would like a picture of", "please show me", "create an image of", "generate an image of"),
)


@dataclass(frozen=True)
class Thing:
    """One shape; centre and radius are shares of the picture's sides."""

    colour: str
    kind: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Drawing:
    """What is drawn, and one way to ask for it."""

    ground: str
    things: tuple[Thing, ...]
    prompt: str

    @property
    def words(self) -> str:
        """What it is, however it is asked for: a part is held out by it."""
        parts = [f"{one.colour} {one.kind} {one.x} {one.y} {one.radius}" for one in self.things]
        return f"{self.ground}: {', '.join(sorted(parts))}"


def drawing(pick: random.Random, held_out: bool = False) -> Drawing:
    """One of the part that is trained, or of the one that is judged."""
    while True:
        made = _drawing(pick)
        if is_held_out(made.words) == held_out:
            return made


def _drawing(pick: random.Random) -> Drawing:
    ground = pick.choice(COLOURS)
    others = [colour for colour in COLOURS if colour != ground]
    colours = pick.sample(others, 3)
    if pick.random() < 0.1:
        colours = [colours[0]] * 3
    kinds = [pick.choice(KINDS) for _ in range(3)]
    layout = pick.choices(
        (_alone, _placed, _side_by_side, _related, _counted), (0.24, 0.26, 0.2, 0.2, 0.1)
    )[0]
    phrase, things = layout(pick, colours, kinds)
    default = "black" if any(one.colour == "white" for one in things) else "white"
    is_default = pick.random() < 0.12 and all(one.colour != default for one in things)
    if is_default:
        ground = default
    return Drawing(ground, tuple(things), _asked(pick, phrase, "" if is_default else ground))


def _asked(pick: random.Random, phrase: str, ground: str) -> str:
    ends = (f"on {ground}",) * 4 + (
        f"on a {ground} background",
        f"on a {ground} ground",
        f"with a {ground} background",
        f"in front of a {ground} background",
    )
    line = f"{phrase} {pick.choice(ends).replace('a orange', 'an orange')}" if ground else phrase
    start = pick.choice(STARTS)
    if start:
        line = f"{start} {line}"
    elif ground and pick.random() < 0.3:
        line = f"on {ground}, {phrase}"
    if start.startswith(("can", "could")):
        line += pick.choice(("?", "", "?"))
    else:
        line += pick.choice(("", "", "", ".", ".", "!", ", please", " please"))
    return capital(line) if pick.random() < 0.5 else line


def named(colour: str, kind: str, size: str = "") -> str:
    """A thing with its article."""
    words = f"{size} {colour} {kind}".strip()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _alone(
    pick: random.Random, colours: Sequence[str], kinds: Sequence[str]
) -> tuple[str, list[Thing]]:
    size = pick.choice(("", "", "", "small", "big"))
    phrase = named(colours[0], kinds[0], size)
    if pick.random() < 0.2:
        phrase += pick.choice((" in the middle", " in the center"))
    return phrase, [Thing(colours[0], kinds[0], 0.5, 0.5, SIZES[size])]


def _placed(
    pick: random.Random, colours: Sequence[str], kinds: Sequence[str]
) -> tuple[str, list[Thing]]:
    count = pick.choice((1, 1, 2, 2, 3))
    cells = [(row, column) for row in range(3) for column in range(3)]
    if count == 1:
        cells.remove((1, 1))  # alone in the middle it is larger
    chosen = pick.sample(cells, count)
    things, phrases = [], []
    for colour, kind, (row, column) in zip(colours, kinds, chosen, strict=False):
        place = PLACES[row][column]
        if place == "in the middle" and pick.random() < 0.3:
            place = "in the center"
        if pick.random() < 0.3:
            place = place.replace("at the", "in the")
        things.append(Thing(colour, kind, CELLS[column], CELLS[row], SMALL))
        phrases.append(f"{named(colour, kind)} {place}")
    return _listed(pick, phrases), things


def _side_by_side(
    pick: random.Random, colours: Sequence[str], kinds: Sequence[str]
) -> tuple[str, list[Thing]]:
    count = pick.choice((2, 2, 3))
    row = APART if count == 2 else CELLS
    radius = PAIR if count == 2 else SMALL
    things = [
        Thing(colour, kind, x, 0.5, radius)
        for colour, kind, x in zip(colours, kinds, row, strict=False)
    ]
    return _listed(pick, [named(one.colour, one.kind) for one in things]), things


def _related(
    pick: random.Random, colours: Sequence[str], kinds: Sequence[str]
) -> tuple[str, list[Thing]]:
    relation = pick.choice(list(RELATIONS))
    axis, order = RELATIONS[relation]
    things = []
    for colour, kind, at in zip(colours, kinds, APART[::order], strict=False):
        x, y = (at, 0.5) if axis == 0 else (0.5, at)
        things.append(Thing(colour, kind, x, y, PAIR))
    first, second = (named(one.colour, one.kind) for one in things)
    return f"{first} {relation} {second}", things


def _counted(
    pick: random.Random, colours: Sequence[str], kinds: Sequence[str]
) -> tuple[str, list[Thing]]:
    count = pick.choice((2, 3))
    row, radius = (APART, PAIR) if count == 2 else (CELLS, SMALL)
    things = [Thing(colours[0], kinds[0], x, 0.5, radius) for x in row]
    return f"{COUNTS[count]} {colours[0]} {kinds[0]}s", things


def _listed(pick: random.Random, phrases: Sequence[str]) -> str:
    last = pick.choice((" and ", " and ", ", "))
    return f"{', '.join(phrases[:-1])}{last if phrases[1:] else ''}{phrases[-1]}"
