"""Pictures of shapes and digits, drawn from a seed, with questions about them."""

import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from world import COLOURS, ONES, SHAPES, is_held_out

RGB = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (40, 70, 220),
    "yellow": (250, 220, 40),
    "orange": (250, 140, 20),
    "purple": (140, 50, 180),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
}
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
# Heights and widths; a served picture of any size is made one of at most 16 tokens.
SIZES = ((64, 64), (96, 96), (128, 128), (128, 128), (96, 128), (128, 96), (96, 160), (160, 96))
KINDS = ("none", *SHAPES, *(str(digit) for digit in range(10)))


@dataclass(frozen=True)
class Shape:
    """One thing in a cell of three by three; `kind` is a shape's name or a digit."""

    kind: str
    colour: str
    row: int
    column: int


@dataclass(frozen=True)
class Scene:
    """A picture's contents; `big`: its only shape fills the picture."""

    ground: str
    shapes: tuple[Shape, ...]
    big: bool = False

    @property
    def words(self) -> str:
        """What it is, for the split and as a prompt."""
        parts = [f"{one.colour} {one.kind} {one.row}{one.column}" for one in self.shapes]
        return f"{self.ground}: {', '.join(parts)}"


def scene(pick: random.Random, held_out: bool = False) -> Scene:
    """One of a part: one shape or digit that fills the picture, or one to three small ones."""
    while True:
        made = _scene(pick)
        if is_held_out(made.words) == held_out:
            return made


def _scene(pick: random.Random) -> Scene:
    ground = pick.choice(COLOURS)
    others = [colour for colour in COLOURS if colour != ground]
    chance = pick.random()
    if chance < 0.5:
        kind = pick.choice(SHAPES) if chance < 0.3 else str(pick.randrange(10))
        return Scene(ground, (Shape(kind, pick.choice(others), 1, 1),), big=True)
    cells = pick.sample(
        [(row, column) for row in range(3) for column in range(3)], pick.randrange(1, 4)
    )
    same = pick.choice(SHAPES)
    kinds = [same if pick.random() < 0.6 else pick.choice(SHAPES) for _ in cells]
    colours = pick.sample(others, len(cells))
    return Scene(
        ground,
        tuple(
            Shape(kind, colour, row, column)
            for kind, colour, (row, column) in zip(kinds, colours, cells, strict=True)
        ),
    )


def draw(
    made: Scene, size: int, pick: random.Random, wide: int | None = None
) -> npt.NDArray[np.uint8]:
    """The picture, uint8 [size, wide or size, 3]; `pick` moves and resizes its shapes a little."""
    scale = 2
    room = ((wide or size) * scale, size * scale)
    image = Image.new("RGB", room, _near(made.ground, pick))
    brush = ImageDraw.Draw(image)
    for shape in made.shapes:
        if made.big:
            radius = min(room) * pick.uniform(0.26, 0.4)
            centre = [side / 2 + side * pick.uniform(-0.06, 0.06) for side in room]
        else:
            radius = min(room) * pick.uniform(0.11, 0.15)
            cell = (shape.column, shape.row)
            centre = [
                side * (0.19 + 0.31 * at + pick.uniform(-0.015, 0.015))
                for side, at in zip(room, cell, strict=True)
            ]
        _draw_shape(brush, shape, centre, radius, _near(shape.colour, pick))
    return np.asarray(image.resize((wide or size, size), Image.Resampling.BOX))


def as_sent(pixels: npt.NDArray[np.uint8], pick: random.Random) -> npt.NDArray[np.uint8]:
    """The picture as it may come: compressed, noisy or resized; mostly as it is."""
    chance = pick.random()
    if chance < 0.25:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=pick.randrange(60, 96))
        return np.asarray(Image.open(file))
    if chance < 0.35:
        image = Image.fromarray(pixels)
        other = [side * pick.choice((2, 3)) for side in image.size]
        image = image.resize((other[0], other[1]), Image.Resampling.BICUBIC)
        return np.asarray(image.resize(pixels.shape[1::-1], Image.Resampling.BICUBIC))
    return pixels


def labels(made: Scene) -> npt.NDArray[np.int64]:
    """What is in each of nine cells, and on what: kinds [9], colours [9] (0: none), the ground."""
    row = np.zeros(19, np.int64)
    for shape in made.shapes:
        cell = 3 * shape.row + shape.column
        row[cell], row[9 + cell] = KINDS.index(shape.kind), COLOURS.index(shape.colour) + 1
    row[18] = COLOURS.index(made.ground)
    return row


def _near(colour: str, pick: random.Random) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, value + pick.randrange(-8, 9))) for value in RGB[colour])
    return red, green, blue


def _draw_shape(
    brush: ImageDraw.ImageDraw,
    shape: Shape,
    centre: Sequence[float],
    radius: float,
    colour: tuple[int, int, int],
) -> None:
    x, y = centre
    if shape.kind == "circle":
        brush.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    elif shape.kind == "square":
        side = radius * 0.9
        brush.rectangle((x - side, y - side, x + side, y + side), fill=colour)
    elif shape.kind == "triangle":
        points = [(x, y - radius), (x - radius, y + 0.8 * radius), (x + radius, y + 0.8 * radius)]
        brush.polygon(points, fill=colour)
    else:
        font = ImageFont.load_default(size=radius * 2.2)
        brush.text((x, y), shape.kind, font=font, fill=colour, anchor="mm")


_AS_JSON = (
    "Answer in JSON with color and shape.",
    "As JSON with the keys color and shape: what is in the picture?",
)


def ask(made: Scene, pick: random.Random) -> tuple[str, str]:
    """A question about the picture, and its answer."""
    if pick.random() < 0.06 and made.big and not made.shapes[0].kind.isdigit():
        shape = made.shapes[0]
        return pick.choice(_AS_JSON), json.dumps({"color": shape.colour, "shape": shape.kind})
    shapes = made.shapes
    is_digit = shapes[0].kind.isdigit()
    if pick.random() < 0.12:
        return pick.choice(("What color is the background?", "Which color is the background?")), (
            f"The background is {made.ground}."
        )
    if is_digit:
        digit, colour = ONES[int(shapes[0].kind)], shapes[0].colour
        if pick.random() < 0.35:
            asked = pick.choice(("What color is the number?", "Which color is the number?"))
            return asked, f"The number is {colour}."
        asked = pick.choice(
            (
                "Which number is this?",
                "What number is in the picture?",
                "Which digit is this?",
                "What is in the picture?",
                "What is in this picture?",
                "What do you see?",
            )
        )
        return asked, f"The number is {digit}."
    one = pick.choice(shapes)
    if len(shapes) == 1 and pick.random() < 0.6:
        return _ask_of_one(made, one, pick)
    return _ask_of_many(made, one, pick)


def _ask_of_one(made: Scene, one: Shape, pick: random.Random) -> tuple[str, str]:
    chance = pick.randrange(3)
    if chance == 0:
        asked = pick.choice(
            ("What color is the {}?", "Which color is the {}?", "What color is the shape?")
        )
        return asked.format(one.kind), f"The {one.kind} is {one.colour}."
    if chance == 1:
        asked = pick.choice(
            ("Which shape is this?", "What shape is this?", "What shape is in the picture?")
        )
        return asked, f"It is a {one.kind}."
    asked = pick.choice(
        (
            "What is in the picture?",
            "What is in this picture?",
            "What do you see?",
            "Describe the picture.",
        )
    )
    return asked, f"A {one.colour} {one.kind} on {made.ground}."


def _ask_of_many(made: Scene, one: Shape, pick: random.Random) -> tuple[str, str]:
    shapes = made.shapes
    chance = pick.randrange(4)
    alone = sum(shape.kind == one.kind for shape in shapes) == 1
    if chance == 0:
        asked = pick.choice(("How many shapes are there?", "How many shapes do you see?"))
        return asked, _there_are(len(shapes), "shape")
    if chance == 1:
        kind = one.kind if pick.random() < 0.7 else pick.choice(SHAPES)
        asked = pick.choice(("How many {}s are there?", "How many {}s do you see?")).format(kind)
        return asked, _there_are(sum(shape.kind == kind for shape in shapes), kind)
    if chance == 2 and alone:
        asked = pick.choice(("What color is the {}?", "Which color is the {}?")).format(one.kind)
        return asked, f"The {one.kind} is {one.colour}."
    if len(shapes) == 1 and pick.random() < 0.3:
        return "What is in the picture?", f"A {one.colour} {one.kind} on {made.ground}."
    asked = f"Where is the {one.colour} {one.kind}?"
    place = (
        "in the middle"
        if made.big or (one.row, one.column) == (1, 1)
        else (f"at the {ROWS[one.row]} {COLUMNS[one.column]}")
    )
    return asked, f"The {one.colour} {one.kind} is {place}."


def _there_are(count: int, kind: str) -> str:
    verb, end = ("is", "") if count == 1 else ("are", "s")
    words = ONES[count] if count else "no"
    return f"There {verb} {words} {kind}{end}."


def prompt(made: Scene, pick: random.Random) -> str:
    """What a picture of one big shape is asked for with."""
    one = made.shapes[0]
    article = "an" if one.colour[0] in "aeiou" else "a"
    ground = pick.choice(
        (f"on {made.ground}", f"on {made.ground}", f"on a {made.ground} background")
    )
    start = pick.choice(("", "", "Draw ", "Please draw ", "A picture of "))
    kind = (
        f"the number {ONES[int(one.kind)]}"
        if one.kind.isdigit()
        else f"{article} {one.colour} {one.kind}"
    )
    if one.kind.isdigit():
        kind = f"{article} {one.colour} {ONES[int(one.kind)]}"
    return f"{start}{kind} {ground}"
