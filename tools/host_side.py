"""`make host`: what a talker's step costs its engine's process on the host, on any machine.

vLLM's own scheduler, and the same scheduler with our connector and gate, take decode steps of the
same requests in turn; a model's output is made up. Then the inputs that come from the thinker are
collected, and the worker half writes a step into a step table and takes its results out of it. No
model runs and no GPU is asked: launches and copies come on top of the worker half's time.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from host_parts import CODE, PROMPT, Drained, Fed, Scheduled, configured
from rich.console import Console
from rich.table import Table
from vllm.utils.torch_utils import make_tensor_with_pad
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from omnistage.connectors import make_connector
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint
from omnistage.stages.vllm.bridge.gate import GatedAsyncScheduler

SCHEDULE, UPDATE = "vLLM's scheduler: schedule", "vLLM's scheduler: update_from_output"


def timed(steps: int, *parts: Callable[[], object]) -> list[float]:
    """Median microseconds of each part; they take turns, so that a busy machine is so for all."""
    times = np.zeros((steps, len(parts)))
    for turn in times:
        for number, part in enumerate(parts):
            begun = time.perf_counter()
            part()
            turn[number] = time.perf_counter() - begun
    return list(1e6 * np.median(times, axis=0))


def penalized(num_requests: int, num_frames: int) -> None:
    """Reads whole answers for a repetition penalty, as vLLM's V1 runner does on the host."""
    make_tensor_with_pad([[CODE] * num_frames] * num_requests, pad=0, dtype=torch.int64)


def scheduled_us(
    stock: Scheduled, ours: Scheduled, steps: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Median microseconds of `schedule` and `update_from_output`: vLLM's alone, then with ours."""
    for _ in range(20):
        stock.step()
        ours.step()
    gc.freeze()  # as an engine's core does
    times = np.array([[*stock.step(), *ours.step()] for _ in range(steps)])
    first, second, third, fourth = (1e6 * np.median(times, axis=0)).tolist()
    return (first, second), (third, fourth)


def measure(run: Path, num_requests: int, steps: int) -> dict[str, float]:
    """Microseconds of each part of a step, in a folder in memory."""
    write_tiny_checkpoint(run / "model")
    connector = make_connector("shm", run, {})
    connector.create("host.feed")
    connector.create("host.rows")
    length = PROMPT + steps + 64
    plain = configured(run / "model", run, num_requests, length, bridged=False)
    bridged = configured(run / "model", run, num_requests, length, bridged=True)
    stock = Scheduled(plain, AsyncScheduler, num_requests)
    ours = Scheduled(bridged, GatedAsyncScheduler, num_requests)
    alone_us, within_us = scheduled_us(stock, ours, steps)
    feed = connector.sender("host.feed")
    collected_us = Fed(ours, feed, num_requests).collected_us(steps)
    drained = Drained(bridged, ours.meta, connector)
    worker_us, exporter_us, _ = timed(steps, drained.write, drained.export, drained.drain)
    penalties = [partial(penalized, num_requests, num_frames) for num_frames in (100, 1000)]
    short_us, long_us = timed(40, *penalties)
    drained.close()
    feed.close()
    ours.scheduler.connector.shutdown()
    return {
        SCHEDULE: alone_us[0],
        UPDATE: alone_us[1],
        "more with the bridge: schedule": within_us[0] - alone_us[0],
        "more with the bridge: update_from_output": within_us[1] - alone_us[1],
        "a token of each request, taken from the thinker's channel": collected_us,
        "the worker half, without a GPU": worker_us,
        "the exporter's thread": exporter_us,
        "vLLM's V1 runner: penalties after 100 frames": short_us,
        "vLLM's V1 runner: penalties after 1000 frames": long_us,
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64, help="that decode at once")
    parser.add_argument("--steps", type=int, default=400, help="of which the medians are")
    arguments = parser.parse_args()
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        times = measure(Path(folder), arguments.requests, arguments.steps)
    stock_us = times[SCHEDULE] + times[UPDATE]
    title = f"{arguments.requests} requests decode"
    table = Table("part of a step", "us", "of vLLM's scheduler", title=title)
    for name, time_us in times.items():
        table.add_row(name, f"{time_us:.0f}", f"{100 * time_us / stock_us:.0f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
