"""Keeps one program alive: starts it, waits until it is ready, starts it again when it has died."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from omnistage.server.cells.child import Child

logger = logging.getLogger(__name__)

READY_POLL_S = 0.25
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 60.0  # before it is started again, twice as long each time
STEADY_S = 60.0  # a life so long ends the counting


class NeverReady(Exception):
    """A program ended before it was ever ready: it would do so again. The message has the cause."""


class Keeper:
    """`make` makes the next life of the program; `is_ready` asks whether it can be used."""

    def __init__(
        self, name: str, make: Callable[[], Child], is_ready: Callable[[], Awaitable[bool]]
    ) -> None:
        self.name = name
        self.child: Child | None = None
        self.is_ready = False
        self._make = make
        self._ask = is_ready
        self._was_ready = False
        self._pause_s = FIRST_PAUSE_S
        self._pause = asyncio.sleep

    async def keep(self) -> None:
        """Until cancelled; NeverReady."""
        while True:
            born_at = time.monotonic()
            self.child = self._make()
            await self.child.start()
            how = await self._live(self.child)
            self.is_ready = False
            if not self._was_ready:
                raise NeverReady(
                    f"{self.name} ended before it was ready: {how}: {self.child.last_line}"
                )
            await self._rest(how, time.monotonic() - born_at)

    async def _live(self, child: Child) -> str:
        """How its life ended, in which it may have become ready."""
        ending = asyncio.create_task(child.wait())
        becoming = asyncio.create_task(self._become_ready())
        try:
            await asyncio.wait({ending, becoming}, return_when=asyncio.FIRST_COMPLETED)
            return await ending
        finally:
            becoming.cancel()
            ending.cancel()

    async def _become_ready(self) -> None:
        began_at = time.monotonic()
        while not await self._ask():  # noqa: ASYNC110
            await asyncio.sleep(READY_POLL_S)
        self.is_ready = self._was_ready = True
        logger.info("%s ready in %.1f s", self.name, time.monotonic() - began_at)

    async def _rest(self, how: str, lived_s: float) -> None:
        if lived_s > STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        logger.error("%s ended: %s; it is started again in %.1f s", self.name, how, pause_s)
        await self._pause(pause_s)
