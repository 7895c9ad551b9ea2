"""A chat whose words a speech model speaks that no edge joins to the model that writes them.

Each is a request of its own. The words go to the speech model as they come, as those of a
WebSocket's client do (server/endpoints/speech_stream.py).
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from omnistage.server.runtime.request import AudioOutput, Output, Outputs, TextOutput
from omnistage.server.runtime.text_input import TextInput
from omnistage.server.tasks.chat.chunks import delta_of
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import run_chat
from omnistage.server.tasks.service import Caller, Service
from omnistage.server.tasks.speech.choice import VoiceChoice
from omnistage.server.tasks.speech.coming import spoken_by_sentences
from omnistage.server.tasks.speech.pieces import is_blank
from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.requests import with_reference
from omnistage.server.tasks.speech_fields import SpeechRequest
from omnistage.server.tasks.speech_task import (
    max_text_of,
    outputs_of,
    speech_choice,
    speech_of,
    speech_request,
)

MAX_AHEAD = 4  # outputs that wait for who reads them
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
    running = await run_chat(service, chat, caller)
    spoken = SpokenWords(service, fields, choice, reference, caller)
    return _merged(_written(running.outputs, spoken), spoken)


@dataclass(slots=True)
class SpokenWords:
    """The words of one answer on their way to the speech model."""

    service: Service
    fields: SpeechRequest
    choice: VoiceChoice
    reference: Reference | None
    caller: Caller
    _first: str = field(default="", init=False)
    _text: TextInput | None = field(default=None, init=False)  # what follows
    _has_begun: asyncio.Event = field(default_factory=asyncio.Event, init=False)  # or has ended

    def add(self, words: str) -> None:
        """Speak more; blanks at the beginning wait for a word."""
        if self._text is not None:
            self._text.add(words)
            return
        self._first += words
        if not is_blank(self._first):
            self._text = TextInput()
            self._has_begun.set()

    def end(self) -> None:
        """No more words will come."""
        if self._text is not None:
            self._text.end()
        self._has_begun.set()

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Yield the speech; its end has the number of all frames. None comes without words."""
        await self._has_begun.wait()
        if self._text is None:
            return
        runtime = self.service.runtime
        admitted = runtime.flights.admit(outputs_of(runtime.graph))
        ticket = self.caller.until.enter_context(admitted)
        fields = self.fields.model_copy(update={"input": self._first})
        request = with_reference(speech_request(fields, runtime, self.choice), self.reference)
        if speech_of(runtime).takes_pieces:
            made = ticket.run(request.with_text(self._text))
        else:
            made = spoken_by_sentences(ticket, request, self._text, max_text_of(runtime, None))
        num_frames = 0
        async with aclosing(made):
            async for output in made:
                if isinstance(output, AudioOutput):
                    num_frames += output.num_frames
                    yield replace(output, num_frames=num_frames if output.last else 0)


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
