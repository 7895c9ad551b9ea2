"""Reads videos: chooses frames by their times, and decodes a file once, up to the last of them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.media.blocks import check_blocks
from omnistage.server.media.containers import (
    BROKEN,
    CODEC_OPTIONS,
    MAX_DURATION_S,
    MAX_FRAME_PIXELS,
    decoded,
    first_stream,
    opened,
    too_long,
)
from omnistage.server.media.video.watching import Indices

MAX_FRAMES = MAX_DURATION_S * 60
MAX_VIDEO_PIXELS = 50_000_000_000  # of all frames: about a minute of one core
MAX_SEEN_PIXELS = 1 << 31  # of the frames that a model gets: a stage has them all at once
MIN_FRAMES = 2
NTSC_RATES = (24_000 / 1001, 30_000 / 1001, 60_000 / 1001)
UNKNOWN_RATE = 24.0  # transformers', of a file that says neither a rate nor times

Pixels = npt.NDArray[np.uint8]
Choose = Callable[[int, float], Indices]  # of so many frames, so many a second


@dataclass(frozen=True, slots=True)
class Scan:
    """How many frames a video has, how many a second, when the first is, and how large they are."""

    num_frames: int
    rate: float
    start_s: float
    size: tuple[int, int]  # of a frame: width and height
    slack_s: float = 0.0  # that a frame may come after its time

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.num_frames / self.rate


@dataclass(frozen=True, slots=True)
class Film:
    """The chosen frames of a video, uint8 [height, width, 3] each, as they are decoded.

    `indices`: their numbers if all frames were equally far apart, `scan.rate` a second.
    """

    scan: Scan
    indices: Indices
    frames: Iterator[Pixels]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the video, as vLLM and transformers name them."""
        return {
            "total_num_frames": self.scan.num_frames,
            "fps": self.scan.rate,
            "duration": self.scan.seconds,
            "frames_indices": self.indices.tolist(),
            "do_sample_frames": False,  # they are sampled
            "video_backend": "pyav",
        }


def film_of(data: bytes, place: str, choose: Choose) -> Film:
    """Choose the frames of a file's first video; raises ApiError, as the frames do."""
    scan = scan_of(data, place)
    indices = choose(scan.num_frames, scan.rate)
    _check_seen(len(indices), scan.size, place)
    return Film(scan, indices, _chosen(data, place, scan, indices))


def scan_of(data: bytes, place: str) -> Scan:
    """Look at every packet of a file's first video and decode none; raises ApiError."""
    check_blocks(data, place)
    with first_stream(data, place, "video") as (container, stream):
        size = stream.codec_context.width, stream.codec_context.height
        pixels = math.prod(size)
        if pixels > MAX_FRAME_PIXELS:
            problem = f"is {size[0]} x {size[1]}; at most {MAX_FRAME_PIXELS} pixels"
            raise invalid(place, problem)
        times: list[float | None] = []
        tick = float(stream.time_base or 0)
        for packet in container.demux(stream):
            if not packet.size or packet.is_discard:  # the last one is empty
                continue
            at = packet.pts if packet.pts is not None else packet.dts
            times.append(None if at is None else at * tick)
            if len(times) > MAX_FRAMES or len(times) * pixels > MAX_VIDEO_PIXELS:
                raise _too_long(place)
        stated = float(stream.average_rate or 0)
    if not times:
        raise invalid(place, "has no video in it")
    if len(times) < MIN_FRAMES:
        raise _too_few(place, len(times))
    known = [time for time in times if time is not None]
    start = min(known, default=0.0)
    span = max(known, default=0.0) - start
    if span > MAX_DURATION_S:
        raise _too_long(place)
    if span <= 0:
        return Scan(len(times), stated or UNKNOWN_RATE, start, size)
    count = len(known)
    rate = rate_of(count, span, tick, stated)
    late = np.abs(np.sort(known) - start - np.arange(count) / rate)
    if late.max() < 0.5 / rate:  # even, but for what containers round
        return Scan(count, rate, start, size, 0.5 / rate)
    return Scan(count, (count - 1) / span, start, size, tick)


def rate_of(num_frames: int, span: float, tick: float, stated: float) -> float:
    """Return how many frames a second there are, the last of which comes `span` seconds late.

    It is what the file states, unless its times disagree; else a usual rate, if the times are such
    but for their container's tick; else the average.
    """
    if stated > 0 and abs((num_frames - 1) / stated - span) < 0.5 / stated:
        return stated
    average = (num_frames - 1) / span
    for rate in (round(average), *NTSC_RATES):
        if rate and abs((num_frames - 1) / rate - span) <= tick:
            return float(rate)
    return average


def _chosen(data: bytes, place: str, scan: Scan, indices: Indices) -> Iterator[Pixels]:
    """Yield for each index the frame that is shown at its time."""
    until = indices / scan.rate + scan.start_s + scan.slack_s
    number, num_decoded = 0, 0
    shown: Any = None
    for frame, time in _decoded_frames(data, place, scan):
        num_decoded += 1
        while shown is not None and number < len(until) and until[number] < time:
            yield shown.pixels
            number += 1
        if number == len(until):
            return
        shown = _Shown(frame, place, len(indices), shown)
    if num_decoded < MIN_FRAMES:
        raise _too_few(place, num_decoded)
    for _ in range(number, len(until)):
        yield shown.pixels


def _decoded_frames(data: bytes, place: str, scan: Scan) -> Iterator[tuple[Any, float]]:
    """Yield the frames in the order in which they are shown, each with its time in seconds."""
    with first_stream(data, place, "video") as (container, stream):
        stream.codec_context.options = CODEC_OPTIONS
        time = scan.start_s - 1 / scan.rate
        num_pixels = 0
        for packet in container.demux(stream):
            for frame in decoded(packet):
                num_pixels += frame.width * frame.height  # headers may say less
                if num_pixels > MAX_VIDEO_PIXELS:
                    raise _too_long(place)
                at = frame.pts if frame.pts is not None else frame.dts
                time = time + 1 / scan.rate if at is None else float(at * frame.time_base)
                yield frame, time


class _Shown:
    """A decoded frame whose pixels are computed when they are wanted; as large as the first."""

    __slots__ = ("_frame", "_pixels", "_size")

    def __init__(self, frame: Any, place: str, num_seen: int, before: "_Shown | None") -> None:
        self._frame = frame
        self._pixels: Pixels | None = None
        if before is None:
            self._size = frame.width, frame.height
            _check_seen(num_seen, self._size, place)
        else:
            self._size = before._size

    @property
    def pixels(self) -> Pixels:
        """RGB, uint8 [height, width, 3], upright."""
        if self._pixels is None:
            width, height = self._size
            frame = self._frame
            if (frame.width, frame.height) != self._size:
                frame = frame.reformat(width, height, "rgb24")
            turns = round(frame.rotation / 90)
            self._pixels = np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
        return self._pixels


def video_pixels(data: bytes) -> int:
    """How many pixels the frames of a video have at most; 0 of what cannot be read."""
    try:
        with opened(data) as container:
            codecs = [stream.codec_context for stream in container.streams.video]
            pixels = max((codec.width * codec.height for codec in codecs), default=0)
    except BROKEN:
        return 0  # reading it says what is wrong
    return min(pixels, MAX_FRAME_PIXELS)


def _check_seen(num_seen: int, size: tuple[int, int], place: str) -> None:
    if num_seen * math.prod(size) > MAX_SEEN_PIXELS:
        problem = f"would be seen by {num_seen} frames of {size[0]} x {size[1]}; at most "
        problem += f"{MAX_SEEN_PIXELS} pixels in all: ask for a lower fps or max_frames"
        raise invalid(place, problem)


def _too_few(place: str, count: int) -> ApiError:
    return invalid(place, f"has {count} frame{'' if count == 1 else 's'}; at least {MIN_FRAMES}")


def _too_long(place: str) -> ApiError:
    limits = f"{MAX_DURATION_S} s, {MAX_FRAMES} frames or {MAX_VIDEO_PIXELS} pixels in all"
    return too_long(place, limits)
