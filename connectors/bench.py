"""Figures of a connector: time one way between two processes, bandwidth over memcpy."""

import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.messages import Message, Messages
from omnistage.connectors.sweep import make_run_directory

SIZES = {"64 B": 64, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 8 << 20}
CONNECTORS = ("shm", "tcp")
OPTIONS = {"arena_mb": 64}
NUM_AT_ONCE = 4
NUM_WARM_UP = 20
BUDGET_BYTES = 1 << 30  # copied by each loop, where that is less than MAX_CHUNKS
MIN_CHUNKS, MAX_CHUNKS = 100, 2000
ADDRESSES = ("there", "back")
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Ball(Message, frozen=True):
    """The message that goes there and back."""


class BenchEnd(Message, frozen=True):
    """Nothing more goes there."""


GAME: Messages[Ball | BenchEnd] = Messages(Ball, BenchEnd)


@dataclass(frozen=True, slots=True)
class Figures:
    """One size of tensor.

    One way is between two processes. Bandwidth is a send and a receive in one process, one chunk
    after the other, and `memcpy_ratio` the time of two plain memcpys over that of these;
    `stream_gb_per_s` is with NUM_AT_ONCE chunks under way.
    """

    size: str
    one_way_p50_us: float
    one_way_p99_us: float
    gb_per_s: float
    stream_gb_per_s: float
    memcpy_ratio: float


def run_bench(connector: str, sizes: Mapping[str, int] = SIZES) -> list[Figures]:
    """Measure a connector with tensors of these names and bytes."""
    run = make_run_directory()
    channels = make_connector(connector, run.path, OPTIONS)
    channels.create("kept")  # links that join its channels run all the while
    try:
        return [_measure(connector, run.path, name, size) for name, size in sizes.items()]
    finally:
        channels.destroy("kept")
        run.remove()


def _measure(connector: str, directory: Path, name: str, size: int) -> Figures:
    source = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    count = min(MAX_CHUNKS, max(MIN_CHUNKS, BUDGET_BYTES // (4 * size)))
    one_way = _latencies(connector, directory, source, count)
    channels = make_connector(connector, directory, OPTIONS)
    channels.create("bulk")
    sender, receiver = channels.sender("bulk"), channels.receiver("bulk", GAME)
    channel, plain = _copy_times(sender, receiver, source, count)
    stream = _stream_time(sender, receiver, source, count)
    sender.close()
    receiver.close()
    channels.destroy("bulk")
    return Figures(
        name,
        float(np.percentile(one_way, 50)) * 1e6,
        float(np.percentile(one_way, 99)) * 1e6,
        size / channel / 1e9,
        size / stream / 1e9,
        plain / channel,
    )


def _copy_times(
    sender: Sender, receiver: Receiver[Ball | BenchEnd], source: Bytes, count: int
) -> tuple[float, float]:
    """Medians in seconds, taken in turn: through a channel, and a copy out and a copy in."""
    chunk = Chunk("a", Ball(), 0, {"bytes": Tensor.from_numpy(source)})
    between = np.empty_like(source)

    def send() -> None:
        sender.send(chunk)
        _next(sender, receiver)

    def copy() -> None:
        between[:] = source
        bytes(between.data)

    times = [(_timed(send), _timed(copy)) for _ in range(count)]
    channel, plain = np.median(times[NUM_WARM_UP:], axis=0)
    return float(channel), float(plain)


def _stream_time(
    sender: Sender, receiver: Receiver[Ball | BenchEnd], source: Bytes, count: int
) -> float:
    """Seconds for each of so many chunks, of which some are always under way."""
    chunk = Chunk("b", Ball(), 0, {"bytes": Tensor.from_numpy(source)})
    started = time.perf_counter()
    for number in range(count + NUM_AT_ONCE):
        if number < count:
            sender.send(chunk)
        if number >= NUM_AT_ONCE:
            _next(sender, receiver)
    return (time.perf_counter() - started) / count


def _timed(do: Callable[[], None]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def _latencies(connector: str, directory: Path, source: Bytes, count: int) -> list[float]:
    """Halves of round trips, in seconds, through two channels and another process."""
    channels = make_connector(connector, directory, OPTIONS)
    for address in ADDRESSES:
        channels.create(address)
    sender, receiver = channels.sender("there"), channels.receiver("back", GAME)
    command = [sys.executable, "-m", "omnistage.connectors.bench", connector, str(directory)]
    ping = Chunk("a", Ball(), 0, {"bytes": Tensor.from_numpy(source)})

    def go_and_return() -> None:
        sender.send(ping)
        _next(sender, receiver)

    with subprocess.Popen(command) as echo:
        times = [_timed(go_and_return) / 2 for _ in range(count)]
        sender.send(Chunk("a", BenchEnd()))
        echo.wait(10)
    sender.close()
    receiver.close()
    for address in ADDRESSES:
        channels.destroy(address)
    return times[NUM_WARM_UP:]


def _next(sender: Sender, receiver: Receiver[Ball | BenchEnd]) -> Chunk[Ball | BenchEnd]:
    """The next chunk, of this sender or of another; ours sends meanwhile what it may."""
    sender.flush()
    while (chunk := receiver.receive()) is None:
        if not select.select([sender.fileno(), receiver.fileno()], [], [], 30)[0]:
            raise TimeoutError("no chunk for 30 s")
        sender.flush()
    receiver.grant(chunk.request_id)
    return chunk


def _echo(receiver: Receiver[Ball | BenchEnd], sender: Sender) -> None:
    while isinstance((chunk := _next(sender, receiver)).message, Ball):
        sender.send(chunk)


if __name__ == "__main__":
    opened = make_connector(sys.argv[1], Path(sys.argv[2]), OPTIONS)
    _echo(opened.receiver("there", GAME), opened.sender("back"))
