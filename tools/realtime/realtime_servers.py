"""Servers for `make realtime-load`: fake stages in a process of their own, or the tiny model."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from support.fakes import stages as fake_stages
from support.gateway.serving import OMNI, running_gateway
from support.printing import say
from support.servers.server import running_server

from omnistage.bench.run import probe_lag
from omnistage.server.realtime.voice.detectors import EnergyDetector, Probabilities
from omnistage.server.realtime.voice.listening import Frames
from omnistage.server.realtime.voice.silero import SileroDetector, SileroPool
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

NUM_FRAMES = 12  # of a piece of a fake answer, of which there are eight: 7.7 s


class BothDetectors:
    """Silero's model, for what it costs, and loudness, which decides."""

    def __init__(self, pool: SileroPool) -> None:
        self._silero, self._energy = SileroDetector(pool), EnergyDetector()

    async def probabilities(self, frames: Frames) -> Probabilities:
        """Return how loud each frame is."""
        await self._silero.probabilities(frames)
        return await self._energy.probabilities(frames)


class Memory:
    """The resident memory of a process, in MiB: at its start, and its peak since.

    Pages of the stages' shared memory are left out: it has a fixed size, and counts as resident
    only as its rings are first written.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.start_mb = self.peak_mb = self._now_mb()
        self.cpu_s = self._cpu_s()

    async def watch(self) -> None:
        """Look at it for ever."""
        while True:
            self.peak_mb = max(self.peak_mb, self._now_mb())
            await asyncio.sleep(0.2)

    def used_cpu_s(self) -> float:
        """Return the processor time since the start."""
        return self._cpu_s() - self.cpu_s

    def _now_mb(self) -> float:
        info = self._process.memory_info()
        return float(info.rss - info.shared) / (1 << 20)

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def serve_fakes() -> None:
    """Serve fake stages until the input ends; prints the address first, then what was measured."""
    fake_stages.FRAMES[:] = [NUM_FRAMES] * 8
    judged_s, judge = [0.0], SileroPool._run

    def judged(pool: SileroPool, jobs: Any) -> Any:
        before_s = time.thread_time()
        made = judge(pool, jobs)
        judged_s[0] += time.thread_time() - before_s
        return made

    SileroPool._run = judged  # type: ignore[assignment, method-assign]
    SileroPool.detector = lambda pool: BothDetectors(pool)  # type: ignore[assignment, method-assign, return-value]
    lags_s: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_gateway(Path(folder), OMNI, arena_mb=64) as gateway,
    ):
        say(gateway.url)
        for line in sys.stdin:  # one that begins, one that ends
            if line.strip() == "begin":
                judged_s[0] = 0.0
                asyncio.run_coroutine_threadsafe(probe_lag(lags_s), gateway._loop)
        gateway.wait_until_idle()
        sys.stdout.write(json.dumps({"lags_s": lags_s, "judged_s": judged_s[0]}) + "\n")


@contextmanager
def fakes() -> Iterator[tuple[str, int, Any]]:
    """Serve fake stages in a process; yields its address, its id and a function for its figures."""
    command = [sys.executable, __file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()

        def begin() -> None:
            process.stdin.write("begin\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]

        def figures() -> Any:
            process.stdin.close()  # type: ignore[union-attr]
            return json.loads(process.stdout.readline())  # type: ignore[union-attr]

        yield url, process.pid, (begin, figures)


@contextmanager
def tiny() -> Iterator[tuple[str, int, Any]]:
    """Serve the tiny model; yields its address, its id and the server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_checkpoint(folder / "tiny")
        graph, options = str(GRAPHS / "qwen3_omni_tiny.yaml"), ["--model", str(folder / "tiny")]
        options += ["--answer-ahead", "0", "--history-ahead", "0"]
        with running_server(graph, folder / "log", *options) as server:
            yield server.url, server.process.pid, server


if __name__ == "__main__":
    serve_fakes()
