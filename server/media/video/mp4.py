"""Videos as files: an mp4 with its audio, a picture of its first frame, a sheet of small ones."""

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
from PIL import Image

from omnistage.server.media.audio.encoder import BIT_RATE, CODECS, file_samples_of
from omnistage.server.media.audio.frames import layout_of
from omnistage.server.media.audio.track import Track
from omnistage.server.runtime.request import ImageOutput

MEDIA_TYPE = "video/mp4"
MAX_DENOMINATOR = 1001  # of a rate: that of NTSC
# Of h264 with colours in quarter size, which every player knows.
CODEC, PIXEL_FORMAT = "libx264", "yuv420p"
AUDIO_FORM = "aac"
THUMBNAIL_SIDE = 512
SHEET_COLUMNS, SHEET_ROWS, SHEET_SIDE = 5, 5, 256
QUALITY = 85  # of 100, of both


def encode(frames: Sequence[ImageOutput], fps: float, track: Track | None = None) -> bytes:
    """Return an mp4 of frames of even sides, so many per second, and of audio that lasts as long.

    The audio has its own rate, or the next one that AAC has.
    """
    buffer = io.BytesIO()
    rate = Fraction(fps).limit_denominator(MAX_DENOMINATOR)
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream(CODEC, rate=rate)
        stream.width, stream.height = frames[0].width, frames[0].height
        stream.pix_fmt = PIXEL_FORMAT
        # Streams are added before the first packet; the container orders what comes by its time.
        audio = None if track is None else _audio_stream(container, track)
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(_image(frame))))
        container.mux(stream.encode())
        if track is not None and audio is not None:
            for part in track.lasting(len(frames) / rate).frames():
                container.mux(audio.encode(part))
            container.mux(audio.encode(None))
    return buffer.getvalue()


def _audio_stream(container: av.container.OutputContainer, track: Track) -> Any:
    made = file_samples_of(AUDIO_FORM, track.samples)
    bit_rate = str(BIT_RATE * made.num_channels)
    return container.add_stream(
        CODECS[AUDIO_FORM].encoder,
        rate=made.rate_hz,
        layout=layout_of(made),
        options={"b": bit_rate},
    )


def thumbnail(frames: Sequence[ImageOutput]) -> bytes:
    """Return the first frame as a WebP of at most THUMBNAIL_SIDE pixels a side."""
    return _file(_small(frames[0], THUMBNAIL_SIDE), "WEBP")


def spritesheet(frames: Sequence[ImageOutput]) -> bytes:
    """Return a JPEG of at most 25 frames, evenly over time, from left to right and row by row."""
    count = min(len(frames), SHEET_COLUMNS * SHEET_ROWS)
    chosen = [frames[index * len(frames) // count] for index in range(count)]
    small = [_small(frame, SHEET_SIDE) for frame in chosen]
    width, height = small[0].size
    num_rows = -(-count // SHEET_COLUMNS)
    sheet = Image.new("RGB", (width * min(count, SHEET_COLUMNS), height * num_rows))
    for index, image in enumerate(small):
        row, column = divmod(index, SHEET_COLUMNS)
        sheet.paste(image, (column * width, row * height))
    return _file(sheet, "JPEG")


def _image(frame: ImageOutput) -> Image.Image:
    return Image.frombuffer("RGB", frame.size, frame.pixels)


def _small(frame: ImageOutput, side: int) -> Image.Image:
    image = _image(frame)
    image.thumbnail((side, side))
    return image


def _file(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, quality=QUALITY)
    return buffer.getvalue()
