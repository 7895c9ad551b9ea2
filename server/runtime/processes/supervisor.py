"""Keeps one stage alive: starts it, ends it when it hangs, starts it again when it has ended."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from omnistage.server.runtime.stage_link import OwnedStage, StageLauncher
from omnistage.server.runtime.stage_record import StageState
from omnistage.stage_configs.declared.graph import Deadlines

logger = logging.getLogger(__name__)

FIRST_DELAY_S, MAX_DELAY_S = 1.0, 30.0
STUCK_INTERVAL_S = 1.0  # how often a stage that is late is looked at
STEADY_S = 60.0  # a stage that served for so long is in no crash loop
READY_GRACE_S = 10.0
LOADING_GRACE_S = 0.5  # a stage that loads does not hear us


class Backoff:
    """How long to wait before a restart: not at all after a steady life, else ever longer."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def delay_s(self, served_s: float) -> float:
        """The wait after a life in which the stage served for `served_s`."""
        if served_s >= STEADY_S:
            self._next_s = 0.0
        delay = self._next_s
        self._next_s = min(MAX_DELAY_S, max(FIRST_DELAY_S, 2 * delay))
        return delay


class Supervisor:
    """One stage through all its generations.

    `on_death` is called at once when it has ended; `renew` empties its channels before the next
    generation starts. A stage is lost if it ends before it was ever ready: its configuration is
    wrong. It is lost too if the machine refuses to start it again.
    """

    def __init__(
        self,
        link: OwnedStage,
        launch: StageLauncher,
        directory: Path,
        deadlines: Deadlines,
        on_death: Callable[[OwnedStage], None],
        renew: Callable[[str], None],
    ) -> None:
        self._link = link
        self._launch = launch
        self._directory = directory
        self._deadlines = deadlines
        self._on_death = on_death
        self._renew = renew
        self._backoff = Backoff()

    async def start(self) -> None:
        """Start the first generation; `keep` does the rest, and `stop` if this is cancelled."""
        self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)  # half started it could not be stopped

    async def keep(self) -> None:
        """Watch and restart until cancelled, or until the stage is lost."""
        link = self._link
        try:
            await self._keep()
        except Exception as error:
            logger.exception("stage %s cannot be started again", link.name)
            link.end(f"could not be started again: {error}", is_lost=True)
            self._on_death(link)

    async def _keep(self) -> None:
        link = self._link
        while True:
            ended_by = await self._end()
            served_s = link.served_s
            link.end(ended_by, is_lost=not link.record.was_ready)
            logger.error("stage %s ended: %s", link.name, ended_by)
            self._on_death(link)
            await self._handle.stop(0)
            if link.record.is_lost:
                return
            delay_s = self._backoff.delay_s(served_s)
            if delay_s:
                logger.warning("stage %s starts again in %.0f s", link.name, delay_s)
            await asyncio.sleep(delay_s)
            self._renew(link.name)
            link.begin_next_generation()
            self._starting = asyncio.create_task(self._start())
            await asyncio.shield(self._starting)

    async def stop(self) -> None:
        """End the stage; `Stop` has been sent to it."""
        await asyncio.wait({self._starting})
        if self._starting.exception() is not None:
            return  # `keep` has said why
        is_loading = self._link.record.state is StageState.LOADING
        await self._handle.stop(LOADING_GRACE_S if is_loading else READY_GRACE_S)

    def excuse(self, seconds: float) -> None:
        """Let the stage be late by so much more."""
        self._started_at += seconds
        self._link.excuse(seconds)

    async def _start(self) -> None:
        self._started_at = asyncio.get_running_loop().time()
        self._handle = self._launch(self._link.name, self._directory)
        await self._handle.start()
        logger.info("stage %s is loading", self._link.name)

    async def _end(self) -> str:
        """How it ended: by itself, or by us because it hung."""
        ending = asyncio.create_task(self._handle.wait())
        hanging = asyncio.create_task(self._hang())
        sticking = asyncio.create_task(self._stick())
        waits = (ending, hanging, sticking)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return ending.result()
            self._handle.kill()
            await ending
            return hanging.result() if hanging.done() else sticking.result()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _hang(self) -> str:
        """Returns, with the reason, when the stage has been silent for too long."""
        loop = asyncio.get_running_loop()
        while True:
            waits = self._waits()
            for since, limit_s, reason in waits:
                if loop.time() >= since + limit_s:
                    return f"{reason} for {limit_s:g} s"
            left_s = min(since + limit_s for since, limit_s, _ in waits) - loop.time()
            # A stage that becomes ready meanwhile has less time from then on.
            await asyncio.sleep(min(left_s, self._deadlines.hang_s))

    def _waits(self) -> list[tuple[float, float, str]]:
        """Since when the stage lets us wait, for how many seconds it may, and for what."""
        record, deadlines = self._link.record, self._deadlines
        if record.state is StageState.LOADING:
            return [(self._started_at, deadlines.start_s, "not ready")]
        waits = [(record.alive_at, deadlines.hang_s, "no sign of life")]
        if record.compiles_since is not None:
            waits.append((record.compiles_since, deadlines.compile_s, "no answer, as it compiled,"))
        return waits

    async def _stick(self) -> str:
        """Returns, with the reason, when the stage is late and what it computes does not get on."""
        link = self._link
        loop = asyncio.get_running_loop()
        while True:
            since, limit_s = link.record.stuck_at, link.record.stuck_limit_s
            if since is not None and loop.time() >= since + limit_s:
                return f"no progress for {limit_s:g} s after a request was overdue"
            await asyncio.sleep(STUCK_INTERVAL_S)
