"""Shows how models load: a bar per stage on a terminal, else a line of the log per phase."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from omnistage.server.runtime.fleet import Fleet
from omnistage.server.runtime.stage_record import StageState
from omnistage.stages.messages.loading import Loading, Phase

logger = logging.getLogger(__name__)

REFRESH_S = 0.25
GB = 1_000_000_000


async def show_loading(fleet: Fleet, console: Console) -> None:
    """Return when every stage is ready; StageDied if one ended first."""
    if not console.is_terminal:
        await _follow(fleet, PhaseLines(fleet).update)
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        await _follow(fleet, Bars(fleet, progress).update)


async def _follow(fleet: Fleet, update: Callable[[], None]) -> None:
    loading = asyncio.create_task(fleet.loaded())
    try:
        while not (await asyncio.wait({loading}, timeout=REFRESH_S))[0]:
            update()
        update()
        loading.result()
    finally:
        loading.cancel()


class Bars:
    """One bar a stage: full when it is ready, as long as its bytes say where they are known."""

    def __init__(self, fleet: Fleet, progress: Progress) -> None:
        self._fleet = fleet
        self._progress = progress
        self._paces = {name: Pace() for name in fleet.health}
        self._bars = {name: self._add(name) for name in fleet.health}

    def _add(self, name: str) -> TaskID:
        return self._progress.add_task(f"{name}: {StageState.LOADING}", total=None)

    def update(self) -> None:
        """Show how every stage is now."""
        loading = self._fleet.loading
        for name, bar in self._bars.items():
            state = self._fleet.stages[name].record.state
            told = loading.get(name)
            if told is not None and state is StageState.LOADING:
                said = describe(told, self._paces[name].left_s(told, time.monotonic()))
                total = told.total_bytes if told.done_bytes else None
                self._show(bar, f"{name}: {said}", told.done_bytes, total)
            else:
                is_ready = state is StageState.READY
                self._show(bar, f"{name}: {state}", int(is_ready), 1 if is_ready else None)

    def _show(self, bar: TaskID, description: str, completed: int, total: int | None) -> None:
        task = next(one for one in self._progress.tasks if one.id == bar)
        task.total = total  # `update` takes None as "no change"
        self._progress.update(task.id, description=description, completed=completed)


class PhaseLines:
    """One line for each phase of each stage, the first time that it is seen."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._said = {(name, Phase.STARTING) for name in fleet.health}

    def update(self) -> None:
        """Log the phases that are new."""
        for name, told in self._fleet.loading.items():
            if (name, told.phase) not in self._said:
                self._said.add((name, told.phase))
                whole = replace(told, done_bytes=0)
                logger.info("stage %s: %s", name, describe(whole, None))


@dataclass(slots=True)
class Pace:
    """How fast a phase gets on, since it was first seen."""

    phase: Phase | None = None
    since: float = 0.0
    first_bytes: int = 0

    def left_s(self, told: Loading, now: float) -> float | None:
        """The seconds that it will take at the pace up to now; None: that cannot be known."""
        if told.phase is not self.phase:
            self.phase, self.since, self.first_bytes = told.phase, now, told.done_bytes
        num_bytes = told.done_bytes - self.first_bytes
        left_bytes = told.total_bytes - told.done_bytes
        if num_bytes <= 0 or left_bytes < 0 or now <= self.since:
            return None
        return left_bytes * (now - self.since) / num_bytes


def describe(told: Loading, left_s: float | None) -> str:
    """A phase in words: how much of it is done, and what remains."""
    if not told.total_bytes:
        return str(told.phase)
    if not told.done_bytes:
        return f"{told.phase} ({told.total_bytes / GB:.1f} GB)"
    done, total = told.done_bytes / GB, told.total_bytes / GB
    remains = "" if left_s is None else f", {_clock(left_s)} left"
    return f"{told.phase} {done:.1f} of {total:.1f} GB{remains}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
