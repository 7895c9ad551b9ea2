"""Measures the cost of expensive bodies: `python tools/dear_bodies.py` prints a table.

It starts a tiny server, sends it each body in turn, and shows for each how much of a CPU the
gateway's process and all processes of the server took, how long the answer took, how long it is,
and how much was logged.
"""

import argparse
import tempfile
import time
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.table import Table
from support.dear_bodies import DEAR, Dear
from support.server import TinyServer, running_server

from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

TIMEOUT_S = 600.0


def cpu_seconds(process: psutil.Process) -> float:
    """Returns what a process has computed so far, in all of its threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measured(server: TinyServer, log: Path, dear: Dear) -> list[str]:
    """The row of one body."""
    gateway = psutil.Process(server.process.pid)
    processes = [gateway, *gateway.children(recursive=True)]
    body = dear.make()
    before = [cpu_seconds(process) for process in processes]
    logged = log.stat().st_size
    started = time.monotonic()
    headers = {"content-type": dear.content_type}
    url = f"{server.url}{dear.path}"
    status = httpx.post(url, content=body, headers=headers, timeout=TIMEOUT_S)
    seconds = time.monotonic() - started
    spent = [cpu_seconds(process) - was for process, was in zip(processes, before, strict=True)]
    return [
        dear.name,
        f"{len(body) / (1 << 20):.1f}",
        str(status.status_code),
        f"{spent[0]:.2f}",
        f"{sum(spent):.2f}",
        f"{seconds:.2f}",
        f"{len(status.content):,}",
        f"{log.stat().st_size - logged:,}",
    ]


def main() -> None:
    """Start a server, send all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="bodies with this in their name")
    arguments = parser.parse_args()
    table = Table("body", "MiB", "status", "gateway CPU s", "all CPU s", "s", "answer B", "log B")
    with tempfile.TemporaryDirectory() as folder:
        model, log = Path(folder, "tiny"), Path(folder, "log")
        write_tiny_checkpoint(model, seed=0)
        with running_server(str(model), log) as server:
            for dear in DEAR:
                if arguments.only in dear.name:
                    table.add_row(*measured(server, log, dear))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
