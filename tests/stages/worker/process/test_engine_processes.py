"""An engine's processes and their ranks are watched; the first that ends is told."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from support.waiting import until, wait_until

from omnistage.stages.worker.process.engine_processes import EngineProcesses, engine_processes


def sleep_long() -> None:
    time.sleep(3600)


def be_engine(note: str) -> None:
    """Start a rank, and something else that is none."""
    rank = multiprocessing.get_context("spawn").Process(target=sleep_long, daemon=True)
    rank.start()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as compiler:
        Path(f"{note}.new").write_text(f"{rank.pid} {compiler.pid}")
        Path(f"{note}.new").rename(note)
        try:
            time.sleep(3600)
        finally:
            compiler.kill()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[BaseProcess, int, int]]:
    """An engine's process, its rank and its compiler."""
    context = multiprocessing.get_context("fork")  # spawned ones leave a resource tracker to us
    process = context.Process(target=be_engine, args=(str(tmp_path / "note"),))
    process.start()
    wait_until((tmp_path / "note").exists)
    rank, compiler = map(int, (tmp_path / "note").read_text().split())
    yield process, rank, compiler
    for pid in (rank, compiler, process.pid):
        try:
            os.kill(pid or 0, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.join()
    process.close()


async def test_the_death_of_a_rank_is_told_and_that_of_a_compiler_is_not(
    engine: tuple[BaseProcess, int, int],
) -> None:
    process, rank, compiler = engine
    assert set(engine_processes()) >= {process.pid, rank}
    assert compiler not in engine_processes()
    ended: list[int] = []

    def end(pid: int) -> None:
        ended.append(pid)
        watched.close()

    watched = EngineProcesses(end)
    os.kill(compiler, signal.SIGKILL)
    await asyncio.sleep(0.2)
    assert not ended
    os.kill(rank, signal.SIGKILL)
    await until(lambda: bool(ended))
    assert ended == [rank]
