"""Figures of the shm connector: bandwidth over memcpy, latency between two processes."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.sweep import make_run_directory

SIZES_MIB = (1, 8)
NUM_COPIES = 60
NUM_CHUNKS = 2000
ADDRESSES = ("there", "back")


def run_bench() -> dict[str, float]:
    """Names and values; memcpy is a copy out and a copy in, as a channel does."""
    run = make_run_directory()
    try:
        return {**_bandwidth(run.path), **_latency(run.path)}
    finally:
        run.remove()


def _bandwidth(directory: Path) -> dict[str, float]:
    connector = ShmConnector(directory, arena_mb=64)
    connector.create("bulk")
    sender, receiver = connector.sender("bulk"), connector.receiver("bulk")
    figures = {}
    for size in SIZES_MIB:
        source = np.random.default_rng(0).integers(0, 255, size << 20, dtype=np.uint8)
        for _ in range(96 // size):  # touch every page of the ring first
            _send(sender, receiver, source)
        started = time.perf_counter()
        for _ in range(NUM_COPIES):
            _send(sender, receiver, source)
        taken = (time.perf_counter() - started) / NUM_COPIES
        between = np.empty_like(source)
        started = time.perf_counter()
        for _ in range(NUM_COPIES):
            between[:] = source
            bytes(between.data)
        plain = (time.perf_counter() - started) / NUM_COPIES
        figures[f"shm GB/s, {size} MiB tensor"] = source.nbytes / taken / 1e9
        figures[f"two memcpy GB/s, {size} MiB"] = source.nbytes / plain / 1e9
        figures[f"shm over memcpy, {size} MiB"] = plain / taken
    sender.close()
    receiver.close()
    connector.destroy("bulk")
    return figures


def _send(
    sender: Sender, receiver: Receiver, source: "np.ndarray[tuple[int], np.dtype[np.uint8]]"
) -> None:
    sender.send(Chunk("a", "bytes", 0, {"bytes": Tensor.from_numpy(source)}))
    assert receiver.receive() is not None
    receiver.grant("a")


def _latency(directory: Path) -> dict[str, float]:
    """Half of a round trip of a 64-byte chunk through two channels and another process."""
    connector = ShmConnector(directory, arena_mb=1)
    for address in ADDRESSES:
        connector.create(address)
    sender, receiver = connector.sender("there"), connector.receiver("back")
    command = [sys.executable, "-m", "omnistage.connectors.bench", str(directory)]
    with subprocess.Popen(command) as echo:
        times = []
        payload = {"bytes": Tensor.from_numpy(np.zeros(64, np.uint8))}
        for _ in range(NUM_CHUNKS + 100):
            started = time.perf_counter()
            sender.send(Chunk("a", "ping", 0, payload))
            _next(receiver)
            times.append((time.perf_counter() - started) / 2 * 1e6)
        sender.send(Chunk("a", "end"))
        echo.wait(10)
    sender.close()
    receiver.close()
    half = times[100:]
    return {
        "one way p50 us, 64 bytes": float(np.percentile(half, 50)),
        "one way p99 us, 64 bytes": float(np.percentile(half, 99)),
    }


def _next(receiver: Receiver) -> Chunk:
    while (chunk := receiver.receive()) is None:
        if not receiver.wait(30):
            raise TimeoutError("no chunk for 30 s")
    receiver.grant(chunk.request_id)
    return chunk


def _echo(directory: Path) -> None:
    connector = ShmConnector(directory, arena_mb=1)
    receiver, sender = connector.receiver("there"), connector.sender("back")
    while (chunk := _next(receiver)).kind != "end":
        sender.send(chunk)


if __name__ == "__main__":
    _echo(Path(sys.argv[1]))
