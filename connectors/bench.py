"""Figures of the shm connector: time one way between two processes, bandwidth over memcpy."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.messages import Message, Messages
from omnistage.connectors.shm import ShmConnector, ShmOptions
from omnistage.connectors.sweep import make_run_directory

SIZES = {"64 B": 64, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 8 << 20}
ARENA_MB = 64
NUM_WARM_UP = 20
BUDGET_BYTES = 1 << 30  # copied by each loop, where that is less than MAX_CHUNKS
MIN_CHUNKS, MAX_CHUNKS = 100, 2000
ADDRESSES = ("there", "back")


class Ball(Message, frozen=True):
    """What goes there and back."""


class End(Message, frozen=True):
    """Nothing more goes there."""


GAME: Messages[Ball | End] = Messages(Ball, End)


@dataclass(frozen=True, slots=True)
class Figures:
    """One size of tensor.

    One way is between two processes. Bandwidth is a send and a receive in one process, and
    `memcpy_ratio` the time of two plain memcpys over that of these.
    """

    size: str
    one_way_p50_us: float
    one_way_p99_us: float
    gb_per_s: float
    memcpy_ratio: float


def run_bench(sizes: Mapping[str, int] = SIZES) -> list[Figures]:
    """Measure tensors of these names and bytes."""
    run = make_run_directory()
    try:
        return [_measure(run.path, name, size) for name, size in sizes.items()]
    finally:
        run.remove()


def _measure(directory: Path, name: str, size: int) -> Figures:
    source = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    count = min(MAX_CHUNKS, max(MIN_CHUNKS, BUDGET_BYTES // (4 * size)))
    channel, plain = _copy_times(directory, source, count)
    one_way = _latencies(directory, source, count)
    return Figures(
        name,
        float(np.percentile(one_way, 50)) * 1e6,
        float(np.percentile(one_way, 99)) * 1e6,
        size / channel / 1e9,
        plain / channel,
    )


def _copy_times(
    directory: Path, source: "np.ndarray[tuple[int], np.dtype[np.uint8]]", count: int
) -> tuple[float, float]:
    """Medians in seconds, taken in turn: through a channel, and a copy out and a copy in."""
    connector = ShmConnector(directory, ShmOptions(arena_mb=ARENA_MB))
    connector.create("bulk")
    sender, receiver = connector.sender("bulk"), connector.receiver("bulk", GAME)
    chunk = Chunk("a", Ball(), 0, {"bytes": Tensor.from_numpy(source)})
    between = np.empty_like(source)

    def send() -> None:
        sender.send(chunk)
        assert receiver.receive() is not None
        receiver.grant("a")

    def copy() -> None:
        between[:] = source
        bytes(between.data)

    times = [(_timed(send), _timed(copy)) for _ in range(count)]
    sender.close()
    receiver.close()
    connector.destroy("bulk")
    channel, plain = np.median(times[NUM_WARM_UP:], axis=0)
    return float(channel), float(plain)


def _timed(do: Callable[[], None]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def _latencies(
    directory: Path, source: "np.ndarray[tuple[int], np.dtype[np.uint8]]", count: int
) -> list[float]:
    """Halves of round trips, in seconds, through two channels and another process."""
    connector = ShmConnector(directory, ShmOptions(arena_mb=ARENA_MB))
    for address in ADDRESSES:
        connector.create(address)
    sender, receiver = connector.sender("there"), connector.receiver("back", GAME)
    command = [sys.executable, "-m", "omnistage.connectors.bench", str(directory)]
    ping = Chunk("a", Ball(), 0, {"bytes": Tensor.from_numpy(source)})

    def go_and_return() -> None:
        sender.send(ping)
        _next(receiver)

    with subprocess.Popen(command) as echo:
        times = [_timed(go_and_return) / 2 for _ in range(count)]
        sender.send(Chunk("a", End()))
        echo.wait(10)
    sender.close()
    receiver.close()
    for address in ADDRESSES:
        connector.destroy(address)
    return times[NUM_WARM_UP:]


def _next(receiver: Receiver[Ball | End]) -> Chunk[Ball | End]:
    while (chunk := receiver.receive()) is None:
        if not receiver.wait(30):
            raise TimeoutError("no chunk for 30 s")
    receiver.grant(chunk.request_id)
    return chunk


def _echo(receiver: Receiver[Ball | End], sender: Sender) -> None:
    while isinstance((chunk := _next(receiver)).message, Ball):
        sender.send(chunk)


if __name__ == "__main__":
    opened = ShmConnector(Path(sys.argv[1]), ShmOptions(arena_mb=ARENA_MB))
    _echo(opened.receiver("there", GAME), opened.sender("back"))
