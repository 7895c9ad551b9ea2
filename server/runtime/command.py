"""Commands to running stages, and what they answer."""

import asyncio
from uuid import uuid4

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.readiness import check_ready
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_gateway import CommandResult
from omnistage.stages.messages.to_stage import Command


class Commander:
    """Sends commands and waits for their answers; a stage that dies or is late is one too."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._waiting: dict[str, tuple[StageLink, asyncio.Future[CommandResult]]] = {}

    async def send(self, link: StageLink, command: str, arguments: JsonMap) -> JsonMap:
        """Returns what the stage answers; ApiError if it refuses, fails, dies or says nothing."""
        check_command(link, command)
        command_id = f"command-{uuid4().hex}"
        waiting: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._waiting[command_id] = link, waiting
        try:
            link.send(command_id, Command(command, dict(arguments)))
            async with asyncio.timeout(self._limit_s):
                answer = await waiting
        except TimeoutError:
            late = f"Stage {link.name} did not answer {command} within {self._limit_s:g} s."
            raise ApiError(504, late, code="stage_timeout") from None
        finally:
            del self._waiting[command_id]
            link.finish(command_id, is_cancelled=False)
        if answer.error is not None:
            raise ApiError.from_stage(answer.error)
        return answer.result

    def receive(self, command_id: str, answer: CommandResult) -> None:
        """Give a stage's answer to who waits for it."""
        _, waiting = self._waiting.get(command_id, (None, None))
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, link: StageLink, error: ApiError) -> None:
        """The stage answers none of its commands any more."""
        for other, waiting in self._waiting.values():
            if other is link and not waiting.done():
                waiting.set_exception(error)


def check_command(link: StageLink, command: str) -> None:
    """Raise ApiError for a command that the stage does not take."""
    check_ready(link)
    if command not in link.record.commands:
        raise _unsupported(f"Stage {link.name} does not know the command {command}.")
    if link.record.commands[command]:
        raise _unsupported(f"Stage {link.name} refuses {command}: {link.record.commands[command]}.")


def _unsupported(message: str) -> ApiError:
    return ApiError(400, message, param="stages", code="unsupported_command")
