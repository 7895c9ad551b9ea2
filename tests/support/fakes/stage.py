"""A fake stage in a process of its own, of a server of server.py.

Its arguments are the stage's name, the run's folder and its parent's id. It prints
FAKE_SERVER_NOISE warnings before it is ready, which it is not while the file FAKE_SERVER_HELD is
there; the stage FAKE_SERVER_BROKEN ends then.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.fakes.stages import FakeGraph

from omnistage.connectors import make_connector
from omnistage.stages.worker.process.lifetime import STAGE_MARK, end_with_parent


async def be_stage(name: str, directory: Path, parent: int) -> None:
    """Serve until told to stop or killed, or the parent is gone."""
    os.environ[STAGE_MARK] = name
    end_with_parent()
    if os.getppid() != parent:
        return
    for number in range(int(os.environ.get("FAKE_SERVER_NOISE", 0))):
        sys.stdout.write(f"WARNING {name} warns of {number}\n")
    if os.environ.get("FAKE_SERVER_BROKEN") == name:
        sys.exit(1)
    stage = FakeGraph(make_connector("shm", directory, {})).launch(name, directory)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    stage.on_stop = stopping.set
    held = os.environ.get("FAKE_SERVER_HELD")
    while held and Path(held).exists() and not stopping.is_set():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    await stage.start()
    await stopping.wait()
    await stage.stop(0)


if __name__ == "__main__":
    asyncio.run(be_stage(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
