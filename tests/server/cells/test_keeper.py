"""A program that is kept alive: first starts, deaths, pauses."""

import asyncio
import signal
import sys

import pytest
from support.waiting import until

from omnistage.server.cells import keeper
from omnistage.server.cells.child import Child
from omnistage.server.cells.keeper import Keeper, NeverReady

LIVE = "import time; time.sleep(60)"
END = "print('error: no room', flush=True)"


class Programs:
    """Children by their programs, one after the other; the last is repeated."""

    def __init__(self, *programs: str) -> None:
        self.programs = [*programs]
        self.made: list[Child] = []
        self.is_ready = True

    def make(self) -> Child:
        program = self.programs.pop(0) if len(self.programs) > 1 else self.programs[0]
        one = Child("cell0", [sys.executable, "-c", program], {}, lambda _: None)
        self.made.append(one)
        return one

    async def ask(self) -> bool:
        return self.is_ready

    def keeper(self) -> Keeper:
        return Keeper("cell0", self.make, self.ask)


async def test_one_that_ends_before_it_is_ready_ends_the_keeping_with_the_reason() -> None:
    programs = Programs(END)
    programs.is_ready = False
    with pytest.raises(NeverReady, match="cell0 ended before it was ready: exit code 0: error: no"):
        await programs.keeper().keep()
    assert len(programs.made) == 1


async def test_one_that_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FIRST_PAUSE_S", 0.01)
    programs = Programs(LIVE)
    kept = programs.keeper()
    keeping = asyncio.create_task(kept.keep())
    await until(lambda: kept.is_ready, 20)
    programs.is_ready = False
    programs.made[0].tell(signal.SIGKILL)
    await until(lambda: len(programs.made) == 2 and programs.made[1].is_started, 20)
    assert not kept.is_ready
    programs.is_ready = True
    await until(lambda: kept.is_ready, 20)
    assert programs.made[0].pid != programs.made[1].pid
    keeping.cancel()
    await programs.made[1].end_within(0)


async def test_one_that_was_ready_once_is_tried_again_and_again_with_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(keeper, "MAX_PAUSE_S", 0.04)
    pauses: list[float] = []
    programs = Programs(END)
    kept = programs.keeper()
    kept._was_ready = True

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    monkeypatch.setattr(kept, "_pause", sleep)
    with pytest.raises(asyncio.CancelledError):
        await kept.keep()
    assert pauses == [0.01, 0.02, 0.04, 0.04, 0.04]
