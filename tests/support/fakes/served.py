"""A process that serves fake stages, which are processes, too."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("server.py")
STAGES = {"omni": ("code2wav", "talker", "thinker"), "studio": ("studio",)}


class Served:
    """A server process that is ready."""

    def __init__(self, log: Path, *, graph: str = "omni", **environment: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), graph],
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self.url = self._wait_for(r"listening on (https?:[\w.:/]+)")
            for stage in STAGES[graph]:
                self._wait_for(rf"stage {stage} (ready)")
        except AssertionError:
            self.process.kill()
            self.process.wait()
            raise
        pid = self.process.pid
        self.stages = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.folders = set(Path("/dev/shm").glob(f"omnistage-{self.process.pid}-*"))

    def _wait_for(self, pattern: str) -> str:
        for _ in range(6000):  # a minute, on a machine with other work
            found = re.search(pattern, self.log.read_text())
            if found:
                return found[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())
