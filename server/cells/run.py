"""Runs all cells and their balancer until told to stop, or until one of them cannot load."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from omnistage.server.cells.child import Child
from omnistage.server.cells.haproxy import STOP_SLACK_S, Front
from omnistage.server.cells.keeper import Keeper, NeverReady
from omnistage.server.cells.layout import HOST, Cell
from omnistage.stage_configs.gpus import VISIBLE

logger = logging.getLogger(__name__)

ASK_PATIENCE_S = 5.0
END_PATIENCE_S = 5.0  # of the balancer, which has nothing to do once the cells have ended
BALANCER = "haproxy"

CommandOf = Callable[[Cell], Sequence[str]]


def serve_command(target: str, options: Sequence[str], cell: Cell) -> Sequence[str]:
    """The server that is a cell."""
    place = ["--host", HOST, "--port", str(cell.port)]
    return [sys.executable, "-m", "omnistage.server.cli", "serve", target, *options, *place]


class Cells:
    """The cells and their balancer, if there is one: started, kept alive and ended together."""

    def __init__(
        self,
        cells: Sequence[Cell],
        command_of: CommandOf,
        front: Front,
        balancer: Sequence[str] | None,
    ) -> None:
        self._front = front
        self._is_stopping = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._client = httpx.AsyncClient(timeout=ASK_PATIENCE_S, trust_env=False)
        self._cells = [self._cell(cell, command_of(cell)) for cell in cells]
        self._balancers = [] if balancer is None else [self._balancer(balancer)]

    async def run(self) -> int:
        """Until told to stop; the exit code: 1 if something could not begin its work."""
        self._listen_to_signals()
        keeping = [asyncio.create_task(one.keep()) for one in (*self._cells, *self._balancers)]
        stopping = asyncio.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait({stopping, *keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopping, *keeping):
                task.cancel()
            ended = await asyncio.gather(*keeping, return_exceptions=True)
            await self._end()
        problems = [one for one in ended if isinstance(one, Exception)]
        for problem in problems:
            if not isinstance(problem, NeverReady):
                raise problem
            logger.error("%s", problem)
        return 1 if problems else 0

    def stop(self) -> None:
        """Let answers end, then everything; a second time: end everything at once."""
        hurried = self._is_hurried if self._is_stopping.is_set() else self._is_stopping
        hurried.set()

    def _cell(self, cell: Cell, command: Sequence[str]) -> Keeper:
        gpus = {VISIBLE: ",".join(cell.gpus)} if cell.gpus else {}
        ask = partial(self._is_ready, f"{cell.url}{self._front.root_path}/ready")
        return Keeper(cell.name, lambda: Child(cell.name, command, gpus), ask)

    def _balancer(self, command: Sequence[str]) -> Keeper:
        host = {"0.0.0.0": HOST, "::": "::1"}.get(self._front.host, self._front.host)
        place = f"[{host}]" if ":" in host else host
        url = f"http://{place}:{self._front.port}{self._front.root_path}/ready"
        return Keeper(BALANCER, lambda: Child(BALANCER, command, {}), partial(self._answers, url))

    async def _is_ready(self, url: str) -> bool:
        return await self._status(url) == httpx.codes.OK

    async def _answers(self, url: str) -> bool:
        """A balancer without a cell answers with a 503."""
        return await self._status(url) is not None

    async def _status(self, url: str) -> int | None:
        try:
            return (await self._client.get(url)).status_code
        except httpx.HTTPError:
            return None

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def _end(self) -> None:
        """The balancer takes nothing new while cells let their answers end; then it ends."""
        self._tell(self._balancers, signal.SIGUSR1)
        self._tell(self._cells, signal.SIGTERM)
        await self._all_end(self._cells, self._front.drain_s + STOP_SLACK_S)
        self._tell(self._balancers, signal.SIGTERM)
        await self._all_end(self._balancers, END_PATIENCE_S)
        await self._client.aclose()

    async def _all_end(self, keepers: Sequence[Keeper], patience_s: float) -> None:
        """All of them end by themselves in time, or are killed, as they are when hurried."""
        ends = [one.end_within(patience_s) for one in _children(keepers)]
        ending = asyncio.gather(*ends)
        hurried = asyncio.create_task(self._is_hurried.wait())
        waited: list[asyncio.Future[Any]] = [ending, hurried]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ending.done():
            logger.warning("ended at once: answers in flight are cut")
            self._tell(keepers, signal.SIGKILL)
        await ending

    def _tell(self, keepers: Sequence[Keeper], number: signal.Signals) -> None:
        for child in _children(keepers):
            child.tell(number)


def _children(keepers: Sequence[Keeper]) -> list[Child]:
    """Those that have been started."""
    return [one.child for one in keepers if one.child is not None and one.child.is_started]


def run_cells(
    cells: Sequence[Cell],
    command_of: CommandOf,
    front: Front,
    balancer: Sequence[str] | None = None,
) -> int:
    """Run them in an event loop of their own; the exit code."""

    async def run() -> int:
        return await Cells(cells, command_of, front, balancer).run()

    return asyncio.run(run())


def balancer_command(program: str, file: Path) -> Sequence[str]:
    """HAProxy in the foreground, as one process."""
    return [program, "-db", "-f", str(file)]
