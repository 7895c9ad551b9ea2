"""Speaks several requests as one answer, without a pause between them."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Self

from omnistage.server.runtime.flight import Ticket
from omnistage.server.runtime.request import AudioOutput, GraphRequest, Output, Outputs

MAX_BEGUN = 2  # pieces of an answer that are in the graph at once
CHARACTERS_PER_S = 25  # of fast speech; in most languages a second has fewer


async def spoken(
    ticket: Ticket, requests: Sequence[GraphRequest], made: Outputs | None = None
) -> Outputs:
    """The outputs of the pieces of a text, in order; of all sound only the end is the last.

    `made`: those of the first piece, if it was sent before.

    The next piece begins when as much sound of the one before has come as that has if it is spoken
    fast. So it is ready in time, whatever the client does meanwhile, and holds a place in the
    stages only for a while before its turn: at its credit it stops until its outputs are taken.
    """
    waiting = deque(requests)
    first = waiting.popleft()
    begun = deque([Piece.begin(_run(ticket, first) if made is None else made, first)])
    try:
        while begun:
            piece = begun[0]
            async with aclosing(piece.outputs()) as outputs:
                async for output in outputs:
                    if waiting and len(begun) < MAX_BEGUN and piece.is_nearly_spoken:
                        following = waiting.popleft()
                        begun.append(Piece.begin(_run(ticket, following), following))
                    yield replace(output, last=False) if len(begun) > 1 else output
            begun.popleft()
    finally:
        for piece in begun:
            await piece.close()


@dataclass(slots=True)
class Piece:
    """One request in the graph, which is there before anyone asks for its outputs."""

    made: Outputs
    first: "asyncio.Task[Output | None]"
    due_s: float  # the next one begins once so much sound has come
    sound_s: float = 0.0
    has_ended: bool = False

    @classmethod
    def begin(cls, made: Outputs, request: GraphRequest) -> Self:
        """Ask for its first output at once."""
        due_s = len(request.given_text.text) / CHARACTERS_PER_S
        return cls(made, asyncio.create_task(_first_of(made)), due_s)

    async def outputs(self) -> Outputs:
        """All of them; raises ApiError."""
        try:
            first = await self.first
            if first is not None:
                self._note(first)
                yield first
            async for output in self.made:
                self._note(output)
                yield output
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel what is left of it."""
        self.first.cancel()
        await asyncio.wait({self.first})
        if not self.first.cancelled():
            self.first.exception()  # nobody is told of it any more
        await self.made.aclose()

    @property
    def is_nearly_spoken(self) -> bool:
        """Returns whether it is time to begin the next one."""
        return self.has_ended or self.sound_s >= self.due_s

    def _note(self, output: Output) -> None:
        if isinstance(output, AudioOutput):
            self.sound_s += output.samples.seconds(len(output.data))
            self.has_ended = output.last


async def _run(ticket: Ticket, request: GraphRequest) -> Outputs:
    """Sent when its first output is asked for: a refusal is an output's place too."""
    async with aclosing(ticket.run(request)) as outputs:
        async for output in outputs:
            yield output


async def _first_of(outputs: Outputs) -> Output | None:
    return await anext(outputs, None)
