"""The embedded model sees what is in a picture, whatever the file, and which of two it is."""

import random
from typing import Any

import pytest
from pictures import Scene, Shape, draw
from PIL import Image
from support.oracles.meaning import (
    GREEN_SQUARE,
    RED_CIRCLE,
    SIDE,
    SmallServer,
    picture_part,
    text_part,
)

pytestmark = pytest.mark.engine

ORIENTATION = 0x0112
TURN_RIGHT = 8  # EXIF: the file is the picture turned right, and readers turn it left


def ask(small: SmallServer, question: str, *parts: dict[str, Any]) -> str:
    """Return the answer to a question about pictures."""
    return small.answer([*parts, text_part(question)])


@pytest.mark.parametrize(
    ("form", "options"), [("PNG", {}), ("JPEG", {"quality": 90}), ("WEBP", {"quality": 90})]
)
def test_a_picture_of_any_format_is_seen(
    form: str, options: dict[str, Any], small: SmallServer
) -> None:
    for image, answer in (
        (RED_CIRCLE, "A red circle on blue."),
        (GREEN_SQUARE, "A green square on white."),
    ):
        part = picture_part(image, form, **options)
        assert ask(small, "What is in the picture?", part) == answer


def test_a_turned_photo_is_seen_upright(small: SmallServer) -> None:
    """A square at the top right: the file has it elsewhere, and says how it was turned."""
    scene = Scene("white", (Shape("square", "red", 0, 2),))
    upright = Image.fromarray(draw(scene, SIDE, random.Random(1)))
    turned = upright.transpose(Image.Transpose.ROTATE_270)
    exif = Image.Exif()
    exif[ORIENTATION] = TURN_RIGHT
    question = "Where is the red square?"
    wanted = "The red square is at the top right."
    assert ask(small, question, picture_part(upright)) == wanted
    assert ask(small, question, picture_part(turned, "JPEG", quality=95, exif=exif)) == wanted
    assert ask(small, question, picture_part(turned)) != wanted


def test_two_pictures_are_seen_in_their_order(small: SmallServer) -> None:
    seen = {id(RED_CIRCLE): "A red circle on blue.", id(GREEN_SQUARE): "A green square on white."}
    for first, second in ((RED_CIRCLE, GREEN_SQUARE), (GREEN_SQUARE, RED_CIRCLE)):
        parts = (picture_part(first), picture_part(second))
        for which, image in (("first", first), ("second", second)):
            question = f"What is in the {which} picture?"
            assert ask(small, question, *parts) == seen[id(image)]
