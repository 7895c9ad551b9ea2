"""A text that comes in pieces, for a model that wants each of its texts whole: by sentences."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from omnistage.server.common.errors import invalid
from omnistage.server.runtime.flight import Ticket
from omnistage.server.runtime.inputs import TextInput, late_text
from omnistage.server.runtime.request import AudioOutput, GraphRequest, Output
from omnistage.server.tasks.speech.pieces import is_blank, sentence_ends
from omnistage.server.tasks.speech.requests import numbered, words_of

NOTHING_SAID = "has nothing in it that can be spoken"
MAX_END = 64  # characters: an end is known by what follows it, which may come later


async def begun(text: TextInput) -> tuple[str, bool]:
    """Wait until a text says something: what has come of it, and whether that is all.

    What comes without any piece is empty. Raises ApiError if the text has nothing but blanks, or
    its next piece does not come in time.
    """
    first, piece, is_whole = "", "", False
    while is_blank(piece) and not is_whole:
        await _arrival(text)
        piece, is_whole = text.take()
        first += piece
    if first and is_blank(piece) and is_blank(first):
        raise invalid("text", NOTHING_SAID)
    return first, is_whole


async def spoken_by_sentences(
    ticket: Ticket, request: GraphRequest, text: TextInput, max_characters: int
) -> AsyncGenerator[Output, None]:
    """The outputs of what is complete of a text, one request after the other; only the end is last.

    The request's body has the first piece.
    """
    number = 0
    sound: AudioOutput | None = None
    async with aclosing(sentences(text, request.given_text.text)) as complete:
        async for part in complete:
            for piece in words_of(part, max_characters):
                async with aclosing(ticket.run(numbered(request, piece, number))) as outputs:
                    async for output in outputs:
                        sound = output if isinstance(output, AudioOutput) else sound
                        yield replace(output, last=False)
                number += 1
    if sound is not None:
        yield AudioOutput(sound.samples, last=True)


async def sentences(text: TextInput, first: str) -> AsyncGenerator[str, None]:
    """Yields all complete sentences each time that there are any; then the rest.

    Raises ApiError if the next piece does not come in time.
    """
    held, is_whole, num_seen = first, False, 0
    while not is_whole:
        ends = sentence_ends(held, max(0, num_seen - MAX_END))
        if ends and held[: ends[-1]].strip():
            yield held[: ends[-1]]
            held = held[ends[-1] :]
        num_seen = len(held)
        await _arrival(text)
        piece, is_whole = text.take()
        held += piece
    if held.strip():
        yield held


async def _arrival(text: TextInput) -> None:
    while True:
        try:
            async with asyncio.timeout_at(text.due_at):
                await text.ready()
            return
        except TimeoutError:
            if text.due_at <= asyncio.get_running_loop().time():
                raise late_text() from None
