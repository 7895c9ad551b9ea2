"""An eye for drawings: what a prompt asks for, and what a picture has by colours and contours.

It knows the words of the small picture model (train/image): colours, shapes, places, relations.
"""

import re
from collections import Counter
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from pictures import RGB

Pixels = npt.NDArray[np.uint8]

COLOURS = RGB  # as the pictures of train/ are drawn
KINDS = ("circle", "square", "triangle", "star")
COUNTS = {"a": 1, "an": 1, "two": 2, "three": 3}
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "middle", "right")
SPECK = 0.004  # of the picture's area: what is smaller is no shape
STAR = 0.8  # of the convex hull, at most
SQUARE, TRIANGLE = 0.9, 0.64  # of the bounding box, at least and at most
BIG, SMALL = 0.29, 0.22  # half of the larger side, at least and at most
APART = 0.15
PLAIN = 0.9  # of the border's pixels have the ground's colour

_COLOUR = "|".join(COLOURS)
_THING = re.compile(
    rf"\b(a|an|two|three) (?:(big|small) )?({_COLOUR}) ({'|'.join(KINDS)})s?\b"
    r"(?: (?:at|in|on) the ((?:top|bottom) (?:left|right)|top|bottom|left|right|middle|center)\b)?"
)
_GROUND = re.compile(
    rf"\b(?:on|with|of)(?: an?)? ({_COLOUR})(?: back)?(?:ground)?\b(?! (?:{'|'.join(KINDS)}))"
)
_RELATION = re.compile(r"(left of|right of|above|over|below|under) an? [a-z]+ [a-z]+")


@dataclass(frozen=True)
class Shape:
    """One shape that is asked for; a place is a row's and a column's name."""

    colour: str
    kind: str
    place: tuple[str, str] | None = None
    size: str | None = None


@dataclass(frozen=True)
class Asked:
    """What a prompt asks for; a relation is of its first shape to its second."""

    shapes: tuple[Shape, ...]
    ground: str | None = None
    relation: str | None = None


@dataclass(frozen=True)
class Seen:
    """A shape of a picture; centre and half of the larger side are shares of the sides."""

    colour: str
    kind: str
    x: float
    y: float
    radius: float

    @property
    def place(self) -> tuple[str, str]:
        """Of three rows and three columns."""
        return ROWS[min(2, int(3 * self.y))], COLUMNS[min(2, int(3 * self.x))]


def asked(prompt: str) -> Asked:
    """Read a prompt; ValueError if it names no shape."""
    text = prompt.lower()
    shapes: list[Shape] = []
    for count, size, colour, kind, place in _THING.findall(text):
        one = Shape(colour, kind, _place(place), size or None)
        shapes += [one] * COUNTS[count]
    if not shapes:
        raise ValueError(f"no shape in the prompt {prompt!r}")
    ground = _GROUND.search(text)
    relation = _RELATION.search(text)
    return Asked(tuple(shapes), ground and ground.group(1), relation and relation.group(1))


def _place(words: str) -> tuple[str, str] | None:
    if not words:
        return None
    row = next((one for one in ("top", "bottom") if one in words), "middle")
    return row, next((one for one in ("left", "right") if one in words), "middle")


def seen(picture: Pixels) -> tuple[str | None, list[Seen]]:
    """The ground's colour (None: not plain) and the shapes of uint8 [height, width, 3]."""
    height, width = picture.shape[:2]
    names = list(COLOURS)
    palette = np.array([COLOURS[name] for name in names], np.float32)
    apart = np.square(picture[:, :, None].astype(np.float32) - palette).sum(-1)
    nearest = apart.argmin(-1)
    border = np.concatenate([nearest[0], nearest[-1], nearest[:, 0], nearest[:, -1]])
    ground, count = Counter(border.tolist()).most_common(1)[0]
    figure = (nearest != ground).astype(np.uint8)
    contours, _ = cv2.findContours(figure, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    found = []
    for contour in contours:
        inside = np.zeros_like(figure)
        cv2.drawContours(inside, [contour], -1, 1, cv2.FILLED)
        if inside.sum() < SPECK * height * width:
            continue
        colour, _ = Counter(nearest[inside > 0].tolist()).most_common(1)[0]
        x, y, wide, high = cv2.boundingRect(contour)
        found.append(
            Seen(
                names[colour],
                _kind(contour, int(inside.sum())),
                (x + wide / 2) / width,
                (y + high / 2) / height,
                max(wide / width, high / height) / 2,
            )
        )
    return (names[ground] if count >= PLAIN * len(border) else None), found


def _kind(contour: npt.NDArray[np.int32], area: int) -> str:
    """By corners of the contour and how much of hull and box its area fills."""
    _, _, wide, high = cv2.boundingRect(contour)
    hull = np.zeros((high, wide), np.uint8)
    corner = contour.reshape(-1, 2).min(0)
    cv2.fillConvexPoly(hull, cv2.convexHull(contour) - corner, 1)
    if area < STAR * hull.sum():
        return "star"
    if area > SQUARE * wide * high:
        return "square"
    corners = len(cv2.approxPolyDP(contour, 0.06 * cv2.arcLength(contour, True), True))
    return "triangle" if area < TRIANGLE * wide * high and corners <= 4 else "circle"


def faults(picture: Pixels, prompt: str) -> list[str]:
    """What is wrong in a picture, uint8 [height, width, 3], that a prompt asked for."""
    wanted = asked(prompt)
    ground, shapes = seen(picture)
    wrong = []
    if ground is None or wanted.ground not in (None, ground):
        wrong.append(f"the ground is {ground or 'not plain'}, not {wanted.ground}")
    left, matched = list(shapes), []
    for one in wanted.shapes:
        same = [other for other in left if (other.colour, other.kind) == (one.colour, one.kind)]
        placed = [other for other in same if one.place in (None, other.place)]
        if not placed:
            wrong.append(f"no {one.colour} {one.kind} {' '.join(one.place or ())}".rstrip())
            continue
        matched.append(placed[0])
        left.remove(placed[0])
        radius = placed[0].radius
        if (one.size == "big" and radius < BIG) or (one.size == "small" and radius > SMALL):
            wrong.append(f"the {one.kind} is not {one.size}: {radius:.2f}")
    wrong += [f"a {one.colour} {one.kind} too many" for one in left]
    if wanted.relation and len(matched) == 2:
        first, second = wanted.shapes
        ways = (matched, matched[::-1]) if first == second else (matched,)
        if any(_holds(wanted.relation, *way) for way in ways):
            return wrong
        wrong.append(f"the {first.kind} is not {wanted.relation} the {second.kind}")
    return wrong


def _holds(relation: str, first: Seen, second: Seen) -> bool:
    right, down = second.x - first.x, second.y - first.y
    if relation.endswith("of"):
        return (right if relation == "left of" else -right) > APART and abs(down) < APART
    return (down if relation in ("above", "over") else -down) > APART and abs(right) < APART
