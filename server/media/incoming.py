"""The sounds and videos of a request, decoded while they are sent to a stage.

A file is decoded once. No more of it is held here than its decoder and one piece.
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.errors import ApiError
from omnistage.server.media.decode_room import DecodeRoom
from omnistage.server.media.medium import Medium
from omnistage.server.media.sound import RawAudio, SoundTrack
from omnistage.server.media.video.frames import film_of, scan_of, video_pixels
from omnistage.server.media.video.watching import FrameChooser
from omnistage.server.runtime.inputs import Piece
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.messages.to_stage import MediumKind, MediumPiece

PIECE_BYTES = 4 << 20
# What decoding takes in memory, beside the file: a frame is held up to 17 times, for those that are
# shown before it, in at most two bytes for each of its values and half as many colours as pixels;
# and as RGB.
BASE_BYTES = 16 << 20
OPEN_BYTES = (1 << 24) * 8
BYTES_PER_FRAME_PIXEL = 17 * 3 + 3
RESAMPLED = 16  # times what int16 samples of 8 kHz take, as float32 of 48 kHz and on their way

NO_SAMPLES = np.zeros(0, np.float32)

Array = npt.NDArray[Any]
About = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A sound or a video whose bytes are here; `name` is what the request calls it."""

    medium: Medium
    data: bytes | RawAudio
    name: str

    @property
    def num_bytes(self) -> int:
        """Return how much memory its data take."""
        return self.data.num_bytes if isinstance(self.data, RawAudio) else len(self.data)


class Incoming:
    """Reads the files of one request, one after another.

    `seconds`: how long each sound is, once it has been read; 0 of a video that is not heard.
    """

    def __init__(self, files: Sequence[MediaFile], room: DecodeRoom) -> None:
        self._files = files
        self._room = room
        self.seconds = [0.0] * len(files)

    async def pieces(self, reading: Reading) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of all media; raises ApiError."""
        num_read = 0
        for files in read_together(self._files):
            readers = [Reader(file, reading) for file in files]
            pieces = _pieces_of(readers)
            is_small = all(map(is_raw, files)) and size_of(files) <= PIECE_BYTES
            step = partial(_next_pieces, pieces, None if is_small else 1)
            num_bytes = sum([await self._num_bytes(file) for file in files])
            async with self._room.held(num_bytes, pieces.close) as do:
                while some := await do(step):
                    for piece in some:
                        yield piece
            for reader in readers:
                self.seconds[num_read] = reader.seconds
                num_read += 1

    async def _num_bytes(self, file: MediaFile) -> int:
        data = file.data
        if isinstance(data, RawAudio):
            return RESAMPLED * data.num_bytes
        size = BASE_BYTES + len(data)
        if file.medium.kind != "video_url":
            return size
        pixels = await self._room.run(OPEN_BYTES + len(data), lambda: video_pixels(data))
        return size + pixels * BYTES_PER_FRAME_PIXEL


def read_together(files: Sequence[MediaFile]) -> Iterator[list[MediaFile]]:
    """Yield the files in order: raw audio as much as is one piece, others one by one."""
    together: list[MediaFile] = []
    for file in files:
        more = [*together, file]
        if together and not (all(map(is_raw, more)) and size_of(more) <= PIECE_BYTES):
            yield together
            together = []
        together.append(file)
    if together:
        yield together


def is_raw(file: MediaFile) -> bool:
    """Return whether its data are samples that need no decoder."""
    return isinstance(file.data, RawAudio)


def size_of(files: Iterable[MediaFile]) -> int:
    """Return how much memory the data of files take."""
    return sum(file.num_bytes for file in files)


def _pieces_of(readers: Iterable["Reader"]) -> Generator[Piece, None, None]:
    for reader in readers:
        yield from reader.pieces()


def _next_pieces(pieces: Iterator[Piece], num: int | None) -> list[Piece]:
    return list(islice(pieces, num))


class Reader:
    """Reads one file as a stage takes it; `seconds`: how long its sound is, once it is read."""

    def __init__(self, file: MediaFile, reading: Reading) -> None:
        self._file = file
        self._reading = reading
        self.seconds = 0.0

    def pieces(self) -> Generator[Piece, None, None]:
        """Yield what is seen and heard of it; may take a while. Raises ApiError."""
        medium, data = self._file.medium, self._file.data
        is_video = medium.kind == "video_url"
        if is_video and isinstance(data, bytes):
            yield from self._seen(data)
        if not is_video or medium.watching.is_heard:
            yield from self._heard()

    def _heard(self) -> Iterator[Piece]:
        medium, rate_hz = self._file.medium, self._reading.audio_rate_hz
        if rate_hz is None:
            raise _not_taken(medium.place, "audio")
        sound = SoundTrack(self._file.data, medium.place)
        samples = sound.samples(rate_hz)
        first = next(samples, NO_SAMPLES)
        yield from self._pieces("sound", chain((first,), samples), {"rate_hz": sound.rate_hz})
        self.seconds = sound.seconds

    def _seen(self, data: bytes) -> Iterator[Piece]:
        medium, reading = self._file.medium, self._reading
        if not reading.takes_video:
            raise _not_taken(medium.place, "video")
        if reading.sampler is None:
            scan_of(data, medium.place)
            yield from self._pieces("file", [np.frombuffer(data, np.uint8)], {})
            return
        sampling = FrameChooser(reading.sampler, reading.options)
        film = film_of(
            data,
            medium.place,
            lambda total, rate: sampling.indices(total, rate, medium.watching),
        )
        first = next(film.frames)
        about = {"shape": [len(film.indices), *first.shape], "metadata": film.metadata}
        yield from self._pieces("frames", chain((first,), film.frames), about)

    def _pieces(self, kind: MediumKind, arrays: Iterable[Array], about: About) -> Iterator[Piece]:
        """Yield the arrays' numbers, the first piece with what is known of the whole."""
        said: About | None = about
        for array in in_pieces(arrays):
            yield MediumPiece(self._file.name, kind, said), Tensor.from_numpy(array)
            said = None


def in_pieces(arrays: Iterable[Array]) -> Iterator[Array]:
    """Yield the same numbers, flat, in as few arrays of at most PIECE_BYTES as it takes."""
    waiting: list[Array] = []
    size = 0
    for array in arrays:
        flat = array.reshape(-1)
        most = PIECE_BYTES // flat.itemsize
        for start in range(0, flat.size, most):
            part = flat[start : start + most]
            if waiting and size + part.size > most:
                yield _joined(waiting)
                waiting, size = [], 0
            waiting.append(part)
            size += part.size
    if waiting:
        yield _joined(waiting)


def _not_taken(place: str, kind: str) -> ApiError:
    message = f"{place} is not supported: this model takes no {kind}."
    return ApiError(400, message, param=place, code="unsupported_parameter")


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
