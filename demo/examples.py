"""Pictures and a sound to try a server with."""

from pathlib import Path

from PIL import Image, ImageDraw

SKY, MEADOW, SUN, WALL, ROOF = "#9fd3f2", "#6aa84f", "#f6c344", "#e8dcc8", "#b5483a"
RED, BLUE = "#dc1e1e", "#2846dc"
QUESTION = Path(__file__).with_name("question.mp3")  # "Which day comes after Monday?", by flite


def circle() -> Image.Image:
    """A red circle on blue."""
    image = Image.new("RGB", (128, 128), BLUE)
    ImageDraw.Draw(image).ellipse((24, 24, 104, 104), fill=RED)
    return image


def house() -> Image.Image:
    """A house in a meadow under the sun."""
    image = Image.new("RGB", (384, 256), SKY)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 176, 384, 256), fill=MEADOW)
    draw.ellipse((286, 24, 346, 84), fill=SUN)
    draw.rectangle((96, 116, 216, 206), fill=WALL)
    draw.polygon(((80, 116), (156, 56), (232, 116)), fill=ROOF)
    draw.rectangle((140, 150, 172, 206), fill=ROOF)
    return image


def spoken_question() -> bytes:
    """A question, an mp3 file."""
    return QUESTION.read_bytes()
