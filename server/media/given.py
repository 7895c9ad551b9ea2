"""The media that a request gives to a pipeline beside its words, as arrays: decoded whole.

Images go with the request. Videos and audio are larger than a channel's chunks: they go before it,
in pieces.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.errors import invalid
from omnistage.server.media.blocks import check_blocks
from omnistage.server.media.containers import decoded, first_stream, too_long
from omnistage.server.media.decode_room import DecodeRoom
from omnistage.server.media.images import File, image_bytes, read_images, read_mask
from omnistage.server.media.incoming import BASE_BYTES, BYTES_PER_FRAME_PIXEL, in_pieces
from omnistage.server.media.video.frames import film_of, scan_of
from omnistage.server.runtime.inputs import Piece
from omnistage.stages.messages.body import GivenMedium
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.messages.to_stage import MediumKind, MediumPiece

MAX_FRAMES = 1024  # of a video
MAX_PIXELS = 1 << 28  # of the frames of all videos of a request
MAX_AUDIO_S, MAX_RATE_HZ = 600, 192_000
MAX_CHANNELS = 2  # of audio; more are mixed
MAX_SAMPLES = 1 << 26  # of all audio of a request, in all channels
NUM_COLOURS, SAMPLE_BYTES = 3, 4

Kind = Literal["image", "mask", "video", "audio"]
KINDS_IN_PIECES: dict[str, MediumKind] = {"video": "frames", "audio": "sound"}


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A medium as a file; `field` says what it is for, by the name that stages know."""

    field: str
    kind: Kind
    file: File


@dataclass(frozen=True, slots=True)
class GivenArray:
    """A decoded medium, in the shape and dtype of `GivenMedium`; `rate`: 0 of an image."""

    field: str
    kind: Kind
    array: npt.NDArray[Any]
    rate: float = 0


class GivenMedia:
    """The decoded media of one request, each under the name of its tensor; a `MediaInput`."""

    def __init__(self, arrays: Sequence[GivenArray]) -> None:
        self.arrays = arrays
        self._named = {f"{one.kind}{index}": one for index, one in enumerate(arrays)}

    @property
    def about(self) -> list[GivenMedium]:
        """Returns what the stage is told of them."""
        return [GivenMedium(one.field, name, one.rate) for name, one in self._named.items()]

    def rate(self, field: str) -> float:
        """Return the rate of the first medium of a field; 0 if there is none."""
        return next((one.rate for one in self._named.values() if one.field == field), 0)

    def num_frames(self, fields: Collection[str]) -> int | None:
        """Return the frames of the shortest video of these fields; None if there is none."""
        found = [one for one in self._named.values() if one.field in fields and one.kind == "video"]
        return min((len(one.array) for one in found), default=None)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Returns those that go with the request."""
        named = self._named.items()
        return {
            name: Tensor.from_numpy(one.array)
            for name, one in named
            if one.kind not in KINDS_IN_PIECES
        }

    @property
    def has_pieces(self) -> bool:
        """Returns whether some go before the request."""
        return any(one.kind in KINDS_IN_PIECES for one in self._named.values())

    async def pieces(self, reading: Reading) -> AsyncGenerator[Piece, None]:
        """Yield what goes before the request."""
        for name, one in self._named.items():
            if one.kind not in KINDS_IN_PIECES:
                continue
            kind = KINDS_IN_PIECES[one.kind]
            about: dict[str, Any] | None = {"shape": list(one.array.shape)}
            for piece in in_pieces([one.array]):
                yield MediumPiece(name, kind, about), Tensor.from_numpy(piece)
                about = None


async def read_given(files: Sequence[GivenFile], room: DecodeRoom, until: ExitStack) -> GivenMedia:
    """Decode the media of one request; the room that they take is kept until `until` ends.

    Raises ApiError for a medium that is broken, of another kind than its field, or too large.
    """
    if not files:
        return GivenMedia(())
    num_file_bytes = BASE_BYTES + sum(len(one.file.data) for one in files)
    num_bytes = await room.run(num_file_bytes, lambda: _num_bytes(files))
    work = lambda: _read(files)  # noqa: E731
    arrays = await room.run(num_file_bytes + num_bytes, work, until, _num_kept)
    return GivenMedia(arrays)


def _num_kept(arrays: Sequence[GivenArray]) -> int:
    return sum(one.array.nbytes for one in arrays)


def _num_bytes(files: Sequence[GivenFile]) -> int:
    """Return how much memory reading takes at most."""
    num_bytes, _ = image_bytes(_files_of(files, "image", "mask"))
    num_pixels = 0
    for file in _files_of(files, "video"):
        scan = scan_of(file.data, file.param)
        frame = scan.size[0] * scan.size[1]
        num_pixels += scan.num_frames * frame
        if scan.num_frames > MAX_FRAMES or num_pixels > MAX_PIXELS:
            size = f"{scan.num_frames} frames of {scan.size[0]} x {scan.size[1]}"
            allowed = f"at most {MAX_FRAMES} frames, and {MAX_PIXELS} pixels in all"
            raise invalid(file.param, f"has {size}; {allowed}")
        num_bytes += 2 * NUM_COLOURS * scan.num_frames * frame + BYTES_PER_FRAME_PIXEL * frame
    has_audio = any(one.kind == "audio" for one in files)
    return num_bytes + 2 * SAMPLE_BYTES * MAX_SAMPLES * has_audio


def _read(files: Sequence[GivenFile]) -> list[GivenArray]:
    """Decode all, the masks last: each has the size of what it is for."""
    images = iter(read_images(_files_of(files, "image")).images)
    read: dict[int, GivenArray] = {}
    num_left = MAX_SAMPLES
    for index, one in enumerate(files):
        if one.kind == "image":
            read[index] = GivenArray(one.field, one.kind, next(images))
        elif one.kind == "video":
            read[index] = _video(one)
        elif one.kind == "audio":
            read[index] = _audio(one, num_left)
            num_left -= read[index].array.size
    for index, one in enumerate(files):
        if one.kind == "mask":
            read[index] = _mask(one, list(read.values()))
    return [read[index] for index in range(len(files))]


def _mask(one: GivenFile, others: Sequence[GivenArray]) -> GivenArray:
    frames = [each.array[0] for each in others if each.field == "video"]
    images = [each.array for each in others if each.field == "image"]
    masked = next(iter(frames + images), None)
    if masked is None:
        raise invalid(one.file.param, "is for a video or an image, and the request has none")
    return GivenArray(one.field, one.kind, read_mask(one.file, masked))


def _video(one: GivenFile) -> GivenArray:
    file = one.file
    film = film_of(file.data, file.param, lambda count, _: np.arange(count))
    frames = np.stack(list(film.frames))
    return GivenArray(one.field, one.kind, frames, film.scan.rate)


def _audio(one: GivenFile, max_samples: int) -> GivenArray:
    """Decode a file's first audio at its own rate: one channel or two."""
    data, place = one.file.data, one.file.param
    check_blocks(data, place)
    blocks: list[npt.NDArray[np.float32]] = []
    num_samples, resampler, rate = 0, None, 0
    with first_stream(data, place, "audio") as (container, stream):
        for packet in container.demux(stream):
            for frame in decoded(packet):
                if resampler is None:
                    rate, layout = frame.sample_rate, _layout(frame)
                    if not 1 <= rate <= MAX_RATE_HZ:
                        raise invalid(place, f"has a sample rate of {rate} Hz")
                    resampler = av.AudioResampler(format="fltp", rate=rate, layout=layout)
                frame.pts = None  # a gap in a file's times is no sound
                blocks += [part.to_ndarray() for part in resampler.resample(frame)]
                num_samples += frame.samples
                if num_samples > min(max_samples // MAX_CHANNELS, MAX_AUDIO_S * rate):
                    raise too_long(
                        place, f"{MAX_AUDIO_S} s, or {MAX_SAMPLES} samples with all audio"
                    )
        if resampler is not None:
            blocks += [part.to_ndarray() for part in resampler.resample(None)]
    samples = np.concatenate(blocks, axis=1) if blocks else np.zeros((1, 0), np.float32)
    if not samples.size:
        raise invalid(place, "has no audio in it")
    if not np.isfinite(samples).all():
        raise invalid(place, "has samples that are no numbers")
    return GivenArray(one.field, one.kind, samples, rate)


def _layout(frame: Any) -> str:
    return "mono" if frame.layout.nb_channels == 1 else "stereo"


def _files_of(files: Sequence[GivenFile], *kinds: Kind) -> list[File]:
    return [one.file for one in files if one.kind in kinds]
