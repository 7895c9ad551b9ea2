"""What is written of a video's frames."""

import io

import av
import numpy as np
import pytest
from PIL import Image

from omnistage.server.media.audio.track import Track
from omnistage.server.media.video.mp4 import (
    SHEET_SIDE,
    THUMBNAIL_SIDE,
    encode,
    spritesheet,
    thumbnail,
)
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.runtime.samples import SampleFormat


def greys(count: int, width: int = 64, height: int = 48) -> list[ImageOutput]:
    """Frames of one grey each, from black towards white."""
    shades = [index * 255 // max(1, count - 1) for index in range(count)]
    return [
        ImageOutput(np.full((height, width, 3), shade, np.uint8).tobytes(), width, height)
        for shade in shades
    ]


def test_an_mp4_has_every_frame_at_its_rate() -> None:
    with av.open(io.BytesIO(encode(greys(5), 29.97))) as container:
        (stream,) = container.streams.video
        assert float(stream.average_rate) == pytest.approx(29.97)
        shades = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(stream)]
    assert np.allclose(shades, [0, 63, 127, 191, 255], atol=4)


def tone(seconds: float, samples: SampleFormat) -> bytes:
    """440 Hz, turned around on the right."""
    times = np.arange(round(seconds * samples.rate_hz)) / samples.rate_hz
    wave = (20_000 * np.sin(2 * np.pi * 440 * times)).astype("<i2")
    channels = [wave, -wave][: samples.num_channels]
    return np.stack(channels, axis=1).tobytes()


@pytest.mark.parametrize(
    ("fps", "count", "rate", "channels", "file_rate"),
    [
        (24, 49, 24_000, 2, 24_000),
        (25, 9, 16_000, 1, 16_000),
        (29.97, 25, 48_000, 2, 48_000),
        (24, 9, 37_000, 1, 44_100),  # AAC has no such rate
        (8, 1, 44_100, 2, 44_100),
    ],
)
@pytest.mark.parametrize("share", [0.5, 1, 1.5])
def test_audio_lasts_as_long_as_the_frames(
    fps: float, count: int, rate: int, channels: int, file_rate: int, share: float
) -> None:
    samples, seconds = SampleFormat(rate, channels), count / fps
    made = Track(samples, tone(share * seconds, samples))
    with av.open(io.BytesIO(encode(greys(count), fps, made))) as container:
        video, audio = container.streams
        assert (audio.codec.name, audio.rate, audio.channels) == ("aac", file_rate, channels)
        lengths = [float(one.duration * one.time_base) for one in (video, audio)]
        assert lengths == pytest.approx([seconds, seconds], abs=0.001)
        heard = np.concatenate([one.to_ndarray() for one in container.decode(audio)], axis=1)
    num_heard = int(min(1, share) * seconds * file_rate)
    loud, silent = heard[:, :num_heard], heard[:, num_heard + 2048 : int(seconds * file_rate)]
    assert np.sqrt(np.mean(loud**2)) == pytest.approx(20_000 / 32_768 / np.sqrt(2), rel=0.1)
    assert not silent.size or np.abs(silent).max() < 0.02
    crossings = np.count_nonzero(np.diff(np.signbit(loud[0]))) / (num_heard / file_rate)
    assert crossings == pytest.approx(880, rel=0.05)
    assert channels == 1 or np.corrcoef(loud)[0, 1] < -0.9


def test_a_thumbnail_is_the_first_frame_and_keeps_its_form() -> None:
    with Image.open(io.BytesIO(thumbnail(greys(3, 1024, 512)))) as image:
        assert (image.format, image.size) == ("WEBP", (THUMBNAIL_SIDE, THUMBNAIL_SIDE // 2))
        assert np.asarray(image).mean() < 4


@pytest.mark.parametrize(
    ("count", "columns", "rows", "last"),
    [(1, 1, 1, 0), (3, 3, 1, 255), (7, 5, 2, 255), (25, 5, 5, 255), (100, 5, 5, 247)],
)
def test_a_spritesheet_has_up_to_25_frames_in_order(
    count: int, columns: int, rows: int, last: int
) -> None:
    with Image.open(io.BytesIO(spritesheet(greys(count, 512, 512)))) as sheet:
        assert (sheet.format, sheet.size) == ("JPEG", (columns * SHEET_SIDE, rows * SHEET_SIDE))
        cells = np.asarray(sheet.convert("L")).reshape(rows, SHEET_SIDE, columns, SHEET_SIDE)
    shades = cells.mean(axis=(1, 3)).reshape(-1)[: min(count, 25)]
    assert np.all(np.diff(shades) > 0)
    assert abs(shades[-1] - last) < 4
