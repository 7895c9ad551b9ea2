"""Prompts that a stage upstream writes, word by word."""

import asyncio
from collections.abc import Callable

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stages.messages.edge import Edge, ReleasedWords
from omnistage.stages.worker.requests.watch import Watch, overdue
from omnistage.stages.worker.stage import StagePorts


class _Text:
    """One request's prompt, as far as it has come."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.pieces: list[str] = []
        self.is_complete = False
        self.has_come = asyncio.Event()


class PromptTexts:
    """The requests whose prompts come from the stage upstream."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._waiting: dict[str, _Text] = {}

    async def whole(self, request_id: str) -> str:
        """The complete text; "" if there is none. RequestError when it does not come in time."""
        text = self._waiting[request_id] = _Text(self._ports.watch())
        try:
            while not text.is_complete:
                text.has_come.clear()
                if not await text.watch.sees(text.has_come):
                    raise overdue(self._ports.source, self._ports.name)
        finally:
            del self._waiting[request_id]
        return "".join(text.pieces)

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """A piece of a prompt; its request's task may not have begun yet."""
        receiver.grant(chunk.request_id)
        if isinstance(chunk.message, ReleasedWords):
            message, last = chunk.message, chunk.last
            self._tell(chunk.request_id, lambda text: _add(text, message.text, last))

    def wait_on(self, request_id: str) -> None:
        """Extends the wait: the next input is late and not overdue."""
        self._tell(request_id, lambda text: None)

    def _tell(self, request_id: str, change: Callable[[_Text], None]) -> None:
        if request_id in self._waiting:
            self._change(request_id, change)
        else:
            asyncio.get_running_loop().call_soon(self._change, request_id, change)

    def _change(self, request_id: str, change: Callable[[_Text], None]) -> None:
        text = self._waiting.get(request_id)
        if text is not None:
            change(text)
            text.watch.restart()
            text.has_come.set()


def _add(text: _Text, piece: str, last: bool) -> None:
    text.pieces.append(piece)
    text.is_complete = last
