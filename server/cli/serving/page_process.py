"""The page of `omnistage up`: `omnistage demo` in a process beside the server's."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from omnistage.server.cli.demo import MISSING, NEEDED
from omnistage.stage_configs.packages import is_installed

logger = logging.getLogger(__name__)

BOUND = Path(__file__).with_name("bound.py")  # a program of its own: it imports nothing of ours
STOP_S = 5.0
ADDRESS = re.compile(r"The page is at (\S+)")


def missing_page() -> str:
    """Returns how to get the page, if this environment cannot serve it; empty otherwise."""
    return "" if all(map(is_installed, NEEDED)) else MISSING


class PageProcess:
    """The page's process, which ends when this process does, however that ends.

    Start it from the main thread: the kernel ends it when the thread that made it ends.
    """

    def __init__(self, url: str, host: str, port: int, api_key: str | None) -> None:
        self._url = url
        self.place = ["--host", host, "--port", str(port)]
        self.environment = {} if api_key is None else {"OMNISTAGE_API_KEY": api_key}

    @property
    def pid(self) -> int:
        """The process's id, once it is started."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Starts it; its address is logged once it can be opened."""
        command = [sys.executable, "-m", "omnistage.server.cli", "demo", "--url", self._url]
        self._process = subprocess.Popen(
            [sys.executable, str(BOUND), str(os.getpid()), *command, *self.place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a Ctrl-C in the terminal is for the server, which ends it
            env={**os.environ, **self.environment},
        )
        self._reader = threading.Thread(target=self._report, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, if it has not ended by itself."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _report(self) -> None:
        """Logs where the page is, and otherwise what it prints."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = ADDRESS.search(line)
            if found:
                logger.info("The page is at %s", found[1], extra={"notice": True})
            elif line.strip():
                logger.warning("the page: %s", line.rstrip())
