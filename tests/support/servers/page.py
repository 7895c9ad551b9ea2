"""The page, served by its command in a process of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

STOP_S = 300.0  # of a busy machine


@contextlib.contextmanager
def running_page(server_url: str, *options: str) -> Iterator[str]:
    """Serve the page for a server until the context ends; the page's address."""
    command = [sys.executable, "-m", "omnistage.server.cli", "demo", "--url", server_url]
    environment = dict(os.environ, COLUMNS="200")
    with subprocess.Popen(
        [*command, "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            (url,) = re.findall(r"http://\S+", line)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
    assert process.returncode in (0, -signal.SIGTERM)
