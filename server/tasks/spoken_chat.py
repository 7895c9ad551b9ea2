"""A chat whose words a speech model speaks that no edge joins to the model that writes them.

Each is a request of its own. The words go to the speech model as they come, as those of a
WebSocket's client do (server/endpoints/audio/speech_stream.py).
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from omnistage.server.runtime.flight import Ticket
from omnistage.server.runtime.inputs import TextInput
from omnistage.server.runtime.request import AudioOutput, Output, Outputs, TextOutput
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.chat.chunks import delta_of
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import run_chat
from omnistage.server.tasks.service import Caller, Service
from omnistage.server.tasks.speech.choice import VoiceChoice
from omnistage.server.tasks.speech.coming import spoken_by_sentences
from omnistage.server.tasks.speech.pieces import is_blank
from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.requests import numbered, with_reference
from omnistage.server.tasks.speech.speech_fields import SpeechRequest
from omnistage.server.tasks.speech_task import (
    max_text_of,
    outputs_of,
    speech_choice,
    speech_of,
    speech_request,
)

MAX_AHEAD = 4  # outputs that wait for who reads them
ENDS, WIDE_ENDS = frozenset(".!?:;"), frozenset("\u3002\uff01\uff1f")  # of sentences
ANY_TEXT = "."  # of a request whose voice is checked before there are words


async def run_spoken_chat(
    service: Service, chat: ChatRequest, voice: str, caller: Caller
) -> Outputs:
    """Send a chat of text; returns its words and, as `AudioOutput`, the speech of them.

    Closing the outputs cancels both requests. Raises ApiError, also for a voice that the speech
    model has not.
    """
    fields = SpeechRequest(input=ANY_TEXT, voice=voice)
    choice = speech_choice(fields, service.runtime, service.voices)
    reference = None
    if choice.has_sound:
        loading = choice.reference(service.voices, service.media, caller.until)
        reference = await caller.wait(loading)
    runtime = service.runtime
    is_cut = speech_of(runtime).takes_pieces  # another is asked by sentences, of any length
    max_text = max_text_of(runtime, None) if is_cut else sys.maxsize
    admitted = runtime.flights.admit(outputs_of(runtime.graph))  # before a word is written
    ticket = caller.until.enter_context(admitted)
    running = await run_chat(service, chat, caller)
    spoken = SpokenWords(service, fields, choice, reference, ticket, max_text)
    return _merged(_written(running.outputs, spoken), spoken)


@dataclass(slots=True)
class SpokenWords:
    """The words of one answer on their way to the speech model.

    A model that takes pieces gets a request for each part of at most `max_text` characters, cut
    behind a sentence or between words.
    """

    service: Service
    fields: SpeechRequest
    choice: VoiceChoice
    reference: Reference | None
    ticket: Ticket
    max_text: int
    _parts: "asyncio.Queue[tuple[str, TextInput] | None]" = field(
        default_factory=asyncio.Queue, init=False
    )
    _text: TextInput | None = field(default=None, init=False)  # what follows of the last part
    _first: str = field(default="", init=False)  # its beginning
    _last: str = field(default="", init=False)  # its last character
    _num: int = field(default=0, init=False)  # of its characters

    def add(self, words: str) -> None:
        """Speak more; blanks at the beginning of a part wait for a word."""
        if self._text is not None and self._is_full(words):
            self._text.end()
            self._text, self._first, self._num = None, "", 0
        self._num += len(words)
        self._last = words[-1]
        if self._text is not None:
            self._text.add(words)
            return
        self._first += words
        if not is_blank(self._first):
            self._text = TextInput()
            self._parts.put_nowait((self._first, self._text))

    def _is_full(self, words: str) -> bool:
        if self._num + len(words) > self.max_text:
            return True
        if self._last in WIDE_ENDS:
            return self._num > self.max_text // 2
        is_between = words[0].isspace() or self._last.isspace()
        most = self.max_text // 2 if self._last in ENDS else self.max_text * 3 // 4
        return is_between and self._num > most

    def end(self) -> None:
        """No more words will come."""
        if self._text is not None:
            self._text.end()
        self._parts.put_nowait(None)

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Yield the speech; its end has the number of all frames. None comes without words."""
        samples: SampleFormat | None = None
        num_frames = number = 0
        while (part := await self._parts.get()) is not None:
            async with aclosing(self._spoken(*part, number)) as made:
                async for output in made:
                    if isinstance(output, AudioOutput):
                        samples = output.samples
                        num_frames += output.num_frames
                        yield replace(output, num_frames=0, last=False)
            number += 1
        if samples is not None:
            yield AudioOutput(samples, num_frames=num_frames, last=True)

    def _spoken(self, first: str, text: TextInput, number: int) -> Outputs:
        runtime = self.service.runtime
        fields = self.fields.model_copy(update={"input": first})
        request = with_reference(speech_request(fields, runtime, self.choice), self.reference)
        request = numbered(request, first, number)
        if speech_of(runtime).takes_pieces:
            return self.ticket.run(request.with_text(text))
        return spoken_by_sentences(self.ticket, request, text, max_text_of(runtime, None))


async def _written(outputs: Outputs, spoken: SpokenWords) -> AsyncGenerator[Output, None]:
    """Yield the words, and have them spoken."""
    async with aclosing(outputs):
        async for output in outputs:
            if isinstance(output, TextOutput):
                for choice in output.chunk.get("choices", ()):
                    words = delta_of(choice).get("content")
                    if words:
                        spoken.add(words)
                yield replace(output, last=False)
    spoken.end()


async def _merged(words: Outputs, spoken: SpokenWords) -> AsyncGenerator[Output, None]:
    """Yield the outputs of both as they come; raises what either raises."""
    queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue(MAX_AHEAD)

    async def pump(outputs: Outputs) -> None:
        ended: Exception | None = None
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    await queue.put(output)
        except Exception as error:  # noqa: BLE001
            ended = error
        await queue.put(ended)

    pumps = [asyncio.create_task(pump(one)) for one in (words, spoken.outputs())]
    num_running = len(pumps)
    try:
        while num_running:
            made = await queue.get()
            if isinstance(made, Exception):
                raise made
            if made is None:
                num_running -= 1
            else:
                yield made
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
