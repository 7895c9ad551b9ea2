"""Plain requests alone, then the same beside hostile ones; what of the server must not change."""

import asyncio
import random
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from support.faults.chaos import is_there, open_files, victims
from support.hostile.bodies import Target
from support.hostile.clients import CHAT, HOSTILITIES, is_failure, prepare
from support.servers.server import TinyServer

HOSTILE_SHARE = 0.3
MAX_HOSTILE_AT_ONCE = 32
ALONE_SHARE, MAX_ALONE_MIN = 0.25, 5.0
WARM_UP = 8
SAMPLE_S = 5.0
SETTLE_S = 10.0
PATIENCE_S = 120.0  # that no act may take longer than
MAX_RATIO = 2.0
MAX_GROWTH_MIB = 64.0  # of a process, from a quarter of the run to its end
KEPT_MARKS = (0, 0.25, 0.5, 0.75, 1)


@dataclass
class Phase:
    """The plain requests of one part of the run."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        """Of how long an answer took, in seconds."""
        return float(np.percentile(self.seconds, share)) if self.seconds else float("nan")


@dataclass
class HostileSoak:
    """One run against one server."""

    server: TinyServer
    target: Target
    chance: random.Random
    plain_per_s: float  # which must leave the server time
    alone: Phase = field(default_factory=Phase)
    beside: Phase = field(default_factory=Phase)
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    memory: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def run(self, minutes: float, console: Console) -> bool:
        """Whether all that must hold did; says what it saw."""
        await asyncio.to_thread(prepare, self.target)
        await self._plain(Phase(), WARM_UP / self.plain_per_s)
        before = self.server.health()
        alone_s = 60 * min(MAX_ALONE_MIN, ALONE_SHARE * minutes)
        await self._plain(self.alone, alone_s)
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample())
            plain = group.create_task(self._plain(self.beside, 60 * minutes - alone_s))
            hostile = group.create_task(self._hostile())
            await plain
            hostile.cancel()
            await asyncio.sleep(SETTLE_S)
            sampling.cancel()
        self.memory.append((60 * minutes + SETTLE_S, memory_mib(self.server)))
        self._judge(before)
        self._report(minutes, console)
        return not self.failures

    async def _plain(self, phase: Phase, seconds: float) -> None:
        """Ask at a fixed rate, however long the answers take."""
        started = time.monotonic()
        async with (
            httpx.AsyncClient(base_url=self.server.url, timeout=PATIENCE_S) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(int(seconds * self.plain_per_s)):
                due = started + number / self.plain_per_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(self._ask(client, phase))

    async def _ask(self, client: httpx.AsyncClient, phase: Phase) -> None:
        started = time.monotonic()
        try:
            response = await client.post(CHAT, json=self.target.body("All well?"))
            phase.statuses[str(response.status_code)] += 1
        except httpx.HTTPError as error:
            phase.statuses[type(error).__name__] += 1
        phase.seconds.append(time.monotonic() - started)

    async def _hostile(self) -> None:
        """Start hostile requests at random moments, as many as their share wants."""
        rate = self.plain_per_s * HOSTILE_SHARE / (1 - HOSTILE_SHARE)
        names = list(HOSTILITIES)
        weights = [HOSTILITIES[name].weight for name in names]
        at_once = asyncio.Semaphore(MAX_HOSTILE_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for name in names:  # each at least once
                group.create_task(self._act(name, at_once))
                await asyncio.sleep(self.chance.expovariate(rate))
            while True:
                (name,) = self.chance.choices(names, weights)
                group.create_task(self._act(name, at_once))
                await asyncio.sleep(self.chance.expovariate(rate))

    async def _act(self, name: str, at_once: asyncio.Semaphore) -> None:
        seed = self.chance.getrandbits(32)
        async with at_once:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    outcome = await HOSTILITIES[name].act(self.target, random.Random(seed))
            except TimeoutError:
                outcome = f"nothing for {PATIENCE_S:g} s"
            except OSError as error:
                outcome = type(error).__name__
        self.outcomes[name][outcome] += 1
        if is_failure(name, outcome):
            self.failures.append(f"{name}, seed {seed}: {outcome}")

    async def _sample(self) -> None:
        started = time.monotonic()
        while True:
            self.memory.append((time.monotonic() - started, memory_mib(self.server)))
            await asyncio.sleep(SAMPLE_S)

    def _judge(self, before: dict[str, dict[str, int]]) -> None:
        after = self.server.health()
        for name, stage in after.items():
            if stage["generation"] != before[name]["generation"]:
                self.failures.append(f"stage {name} was started again")
            held = {**stage["held"], "running": stage["running"]}
            if any(held.values()):
                self.failures.append(f"stage {name} still holds {held}")
        if missing := HOSTILITIES.keys() - self.outcomes.keys():
            self.failures.append(f"the run was too short for {', '.join(sorted(missing))}")
        for phase in (self.alone, self.beside):
            if set(phase.statuses) != {"200"}:
                self.failures.append(f"plain requests: {dict(phase.statuses)}")
        if not self.alone.percentile(50) < 1 / self.plain_per_s:
            problem = f"{self.plain_per_s:g} plain requests a second alone are too many here"
            self.failures.append(f"{problem}: give a lower --rate")
        if not self.ratio <= MAX_RATIO:
            self.failures.append(f"plain requests' p99 is {self.ratio:.2f} times its value alone")
        quarter, end = self._marks()[1][1], self._marks()[-1][1]
        for name, mib in end.items():
            if mib - quarter.get(name, mib) > MAX_GROWTH_MIB:
                self.failures.append(f"{name} has grown by {mib - quarter[name]:.0f} MiB")

    @property
    def ratio(self) -> float:
        """The p99 beside hostile requests over that alone."""
        return self.beside.percentile(99) / self.alone.percentile(99)

    def _marks(self) -> list[tuple[float, dict[str, float]]]:
        return [self.memory[int(share * (len(self.memory) - 1))] for share in KEPT_MARKS]

    def _report(self, minutes: float, console: Console) -> None:
        table = Table("class", "requests", "outcomes", title=f"hostile, {minutes:g} minutes")
        for name, counts in self.outcomes.items():
            told = ", ".join(f"{outcome}: {count}" for outcome, count in counts.most_common())
            table.add_row(name, str(counts.total()), told)
        console.print(table)
        table = Table("plain requests", "number", "p50 ms", "p99 ms", "outcomes")
        for name, phase in (("alone", self.alone), ("beside hostile ones", self.beside)):
            figures = [f"{1e3 * phase.percentile(share):.0f}" for share in (50, 99)]
            table.add_row(name, str(len(phase.seconds)), *figures, str(dict(phase.statuses)))
        console.print(table, f"p99 beside over alone: {self.ratio:.2f}")
        marks = self._marks()
        table = Table("MiB", *(f"{at / 60:.1f} min" for at, _ in marks))
        for name in marks[-1][1]:
            table.add_row(name, *(f"{mib.get(name, 0):.0f}" for _, mib in marks))
        console.print(table, f"descriptors: {open_files(self.server)}")
        for failure in self.failures:
            console.print(f"FAILED: {failure}", markup=False)


def memory_mib(server: TinyServer) -> dict[str, float]:
    """Anonymous memory of every process: what is mapped from files and channels is not counted."""
    pids = {"gateway": server.process.pid}
    pids |= {str(v): v.pid for v in victims(server) if v.role != "tracker" and is_there(v.pid)}
    found = {}
    for name, pid in pids.items():
        (kib,) = re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        found[name] = int(kib) / 1024
    return found
