"""Commands from the gateway to a running stage: sleep, LoRA, profiler and the like."""

import asyncio
import logging
from collections.abc import Coroutine

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Sender
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_gateway import CommandResult
from omnistage.stages.messages.to_stage import Command
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Stage, TakesCommands

logger = logging.getLogger("omnistage.stage")


class Commands:
    """Runs a stage's commands; each is answered once, with its result or an error."""

    def __init__(self, stage: Stage, name: str, outputs: Sender, limit_s: float) -> None:
        self._stage = stage
        self._name = name
        self._outputs = outputs
        self._limit_s = limit_s
        self._running: set[asyncio.Task[None]] = set()
        self._is_busy = asyncio.Event()

    def begin(self, command_id: str, command: Command) -> None:
        """Begin what a command asks for."""
        task = asyncio.get_running_loop().create_task(self._answer(command_id, command))
        self._running.add(task)
        self._is_busy.set()
        task.add_done_callback(self._forget)

    @property
    def is_busy(self) -> bool:
        """Returns whether one is obeyed."""
        return self._is_busy.is_set()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not self._running:
            self._is_busy.clear()

    async def _answer(self, command_id: str, command: Command) -> None:
        answer = await self._obey(command.command, command.arguments)
        self._outputs.send(Chunk(command_id, answer, last=True))

    async def _obey(self, command: str, arguments: JsonMap) -> CommandResult:
        if not isinstance(self._stage, TakesCommands):
            return self._refusal(RequestError(400, f"Stage {self._name} takes no commands."))
        try:
            async with asyncio.timeout(self._limit_s):
                return CommandResult(dict(await self._stage.control(command, arguments)))
        except RequestError as error:
            return self._refusal(error)
        except TimeoutError:
            late = f"Stage {self._name}: {command} took longer than {self._limit_s:g} s."
            return self._refusal(RequestError(504, late, code="stage_timeout"))
        except Exception:
            logger.exception("the command %s failed in stage %s", command, self._name)
            failed = f"Stage {self._name}: {command} failed; its log says why."
            return self._refusal(RequestError(500, failed))

    def _refusal(self, error: RequestError) -> CommandResult:
        return CommandResult(error=error.told_by(self._name))

    async def unless_busy(self, asked: Coroutine[object, object, None]) -> None:
        """Wait for the engine's sign of life; one that obeys a command has that one's deadline."""
        asking = asyncio.ensure_future(asked)
        waiting = asyncio.create_task(self._is_busy.wait())
        try:
            await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        finally:
            for task in (asking, waiting):
                task.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)

    async def close(self) -> None:
        """Cancel what runs."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
