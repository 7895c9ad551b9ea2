"""`make chaos`: kills and stops every process below a tiny server in turn, and prints a table."""

import argparse
import asyncio
import math
import random
import signal
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from support.faults.chaos import (
    HELLO,
    Outcome,
    allowed_s,
    chaos_graph,
    kill_under_load,
    strike,
    traces,
    victims,
)
from support.servers.server import TinyServer, launch, running_server

from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

BLOWS = (signal.SIGKILL, signal.SIGSTOP)


async def rounds(server: TinyServer, count: int, console: Console) -> list[Outcome]:
    """Hit every process with everything, `count` times."""
    expected = await server.ask(HELLO)
    names = [(victim.stage, victim.role) for victim in victims(server)]
    outcomes = []
    for number in range(count):
        for name in names:
            for blow in BLOWS:
                found = [v for v in victims(server) if (v.stage, v.role) == name]
                if not found:
                    continue  # a resource tracker that was killed comes back only when it is needed
                outcomes.append(await strike(server, found[0], blow, expected, math.inf))
                last = outcomes[-1]
                console.print(
                    f"{time.strftime('%H:%M:%S')} round {number + 1}: {last.victim} {blow.name}: "
                    f"error {last.error_s:.2f} s, service {last.service_s:.1f} s"
                )
    return outcomes


async def server_kills(count: int, model: str, folder: Path, console: Console) -> None:
    """Kill whole servers at random moments, each in the traces of the one before."""
    chance = random.Random(0)
    before = traces()
    for number in range(count):
        server = launch(str(chaos_graph(folder)), folder / "log", "--model", model)
        after_s = chance.uniform(1, 40)
        gone_s = await kill_under_load(server, after_s)
        console.print(f"kill {number + 1}: {after_s:.1f} s after the start, gone in {gone_s:.2f} s")
    left = traces() - before
    with running_server(model, folder / "log"):
        assert not left & traces(), left & traces()
    assert traces() <= before, traces() - before
    console.print(f"{count} servers killed; the next start left nothing of them")


def main() -> None:
    """Print, for each process and blow, the slowest error and the slowest return to service."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-kills", type=int, default=20)
    arguments = parser.parse_args()
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_checkpoint(folder / "tiny", 0)
        options = ("--model", str(folder / "tiny"))
        with running_server(str(chaos_graph(folder)), folder / "log", *options) as server:
            outcomes = asyncio.run(rounds(server, arguments.rounds, console))
        model = str(folder / "tiny")
        asyncio.run(server_kills(arguments.server_kills, model, folder, console))
    table = Table("process", "signal", "rounds", "last error, s", "in service again, s")
    by_blow = defaultdict(list)
    for outcome in outcomes:
        by_blow[str(outcome.victim), outcome.blow.name].append(outcome)
    for (victim, blow), same in by_blow.items():
        error_s = max(outcome.error_s for outcome in same)
        service_s = max(outcome.service_s for outcome in same)
        table.add_row(victim, blow, str(len(same)), f"{error_s:.2f}", f"{service_s:.1f}")
    console.print(table)
    late = [outcome for outcome in outcomes if outcome.error_s >= allowed_s(outcome.blow)]
    if late:
        raise SystemExit(f"{len(late)} errors came late: {late}")


if __name__ == "__main__":
    main()
