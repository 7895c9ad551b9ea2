"""How many cores each process of a server uses: one that uses a whole one limits a load."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from support.faults.chaos import IMPORTER, WORKER, command_of
from support.servers.server import TinyServer

SHOWN = 0.05  # cores


@contextmanager
def cores(server: TinyServer) -> Iterator[list[str]]:
    """Measure while it runs; then the list has one line: `gateway 0.41, thinker@0 0.93 + 0.88`.

    A stage's first figure is its worker's, those behind it its engine's and its ranks'. Threads
    count together. Of the machine all busy cores are told, and those that its host gave to others.
    """
    said = list[str]()
    before, all_before, began = _seconds(server), psutil.cpu_times(), time.monotonic()
    yield said
    after, all_after, elapsed = _seconds(server), psutil.cpu_times(), time.monotonic() - began
    stages = dict[str, list[float]]()
    for (name, pid), seconds in after.items():
        used = (seconds - before.get((name, pid), 0.0)) / elapsed
        stages.setdefault(name, []).append(used)
    each = (f"{name} {' + '.join(_shown(used))}" for name, used in stages.items())
    idle, stolen = (
        (getattr(all_after, name) - getattr(all_before, name)) / elapsed
        for name in ("idle", "steal")
    )
    num_cores = psutil.cpu_count()
    said.append(
        f"cores: {', '.join(each)}; idle {idle:.1f} of {num_cores}, taken by the host {stolen:.1f}"
    )


def _shown(used: list[float]) -> Iterator[str]:
    worker, *others = used
    yield f"{worker:.2f}"
    yield from (f"{one:.2f}" for one in others if one >= SHOWN)


def _seconds(server: TinyServer) -> dict[tuple[str, int], float]:
    """Processor time by stage and process, workers before what they started."""
    gateway = psutil.Process(server.process.pid)
    found = {("gateway", gateway.pid): _used(gateway)}
    for worker in gateway.children(recursive=True):
        words = command_of(worker.pid)
        if WORKER in words and IMPORTER not in words:
            stage = words[words.index("--stage") + 1]
            for process in (worker, *worker.children(recursive=True)):
                found[stage, process.pid] = _used(process)
    return found


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # it has just ended
        return 0.0
    return float(times.user + times.system)
