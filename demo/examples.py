"""A picture and a sound to try a server with, made here."""

import math
import struct

from PIL import Image, ImageDraw

from omnistage.demo.sound import RATE_HZ, wav

NOTES_HZ = (523.25, 659.25, 783.99, 1046.5)
NOTE_S = 0.3
SKY, MEADOW, SUN, WALL, ROOF = "#9fd3f2", "#6aa84f", "#f6c344", "#e8dcc8", "#b5483a"


def picture() -> Image.Image:
    """A house in a meadow under the sun."""
    image = Image.new("RGB", (384, 256), SKY)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 176, 384, 256), fill=MEADOW)
    draw.ellipse((286, 24, 346, 84), fill=SUN)
    draw.rectangle((96, 116, 216, 206), fill=WALL)
    draw.polygon(((80, 116), (156, 56), (232, 116)), fill=ROOF)
    draw.rectangle((140, 150, 172, 206), fill=ROOF)
    return image


def melody() -> bytes:
    """Four notes upwards, a wav file."""
    count = round(NOTE_S * RATE_HZ)
    samples = [
        round(9000 * math.exp(-4 * index / count) * math.sin(math.tau * hz * index / RATE_HZ))
        for hz in NOTES_HZ
        for index in range(count)
    ]
    return wav(struct.pack(f"<{len(samples)}h", *samples))
