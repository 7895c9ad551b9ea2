"""A chat that runs before its client knows of it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from omnistage.server.common.trace import following
from omnistage.server.http.state import RequestState
from omnistage.server.realtime.common import Common
from omnistage.server.runtime.request import AudioOutput, Output

MAX_HELD_BYTES = 1 << 20
CHUNK_BYTES = 256  # a chunk of text counts as so many


class HeldChat:
    """A chat that runs and holds what it makes, at most 1 MiB; its stages stop at their credit."""

    def __init__(self, state: RequestState, outputs: AsyncGenerator[Output, None]) -> None:
        self.state = state
        state.trace.held_back = []
        self._made = outputs
        self._held: deque[Output] = deque()
        self._num_bytes = 0
        self._max_bytes = MAX_HELD_BYTES
        self._changed = asyncio.Condition()
        self._has_ended = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_broken(self) -> bool:
        """Return whether it failed before it made anything."""
        return self._failure is not None and not self._held

    def start(self, common: Common) -> None:
        """Begin, in a task of the session."""
        self._task = common.tasks.begin(self._run())

    def cancel(self) -> None:
        """End it: its stages stop."""
        assert self._task is not None
        self._task.cancel()

    async def _run(self) -> None:
        try:
            with following(self.state.trace):
                async with aclosing(self._made):
                    async for output in self._made:
                        await self._hold(output)
        except Exception as failure:  # noqa: BLE001 - it is that of who takes the outputs
            self._failure = failure
        async with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    async def _hold(self, output: Output) -> None:
        async with self._changed:
            self._held.append(output)
            self._num_bytes += size_of(output)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._num_bytes < self._max_bytes)

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Yield what it made and makes; closing it early cancels the chat. Raises ApiError."""
        self._max_bytes = 1  # from now on at the pace of who takes it
        try:
            while (output := await self._next()) is not None:
                yield output
        finally:
            self.cancel()
        if self._failure is not None:
            raise self._failure

    async def _next(self) -> Output | None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._held or self._has_ended)
            if not self._held:
                return None
            output = self._held.popleft()
            self._num_bytes -= size_of(output)
            self._changed.notify_all()
            return output


def size_of(output: Output) -> int:
    """Return how many bytes a held output counts as."""
    return len(output.data) if isinstance(output, AudioOutput) else CHUNK_BYTES
