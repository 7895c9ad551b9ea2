"""The spoken answers of one connection to /v1/audio/speech/stream."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from starlette.types import Scope

from omnistage.server.common.deadline import due_at, loop_time_in
from omnistage.server.common.errors import ApiError, internal_error
from omnistage.server.common.trace import FIRST_AUDIO, GATEWAY
from omnistage.server.endpoints.audio.speech_stream_events import SpeechEvents
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.socket_answers import answered, new_answer
from omnistage.server.http.protocol.socket_protocol import SPEECH_STREAM
from omnistage.server.http.sse import ClientTooSlow
from omnistage.server.http.state import RequestState, state_of
from omnistage.server.media.audio.encoding import encoded
from omnistage.server.runtime.flight import Ticket
from omnistage.server.runtime.request import AudioOutput, Output
from omnistage.server.tasks.speech.coming import begun, spoken_by_sentences
from omnistage.server.tasks.speech.continuous import spoken
from omnistage.server.tasks.speech.requests import SpeechUsage, pieces_of_request, with_reference
from omnistage.server.tasks.speech.utterance import Utterance
from omnistage.server.tasks.speech_task import (
    input_of,
    outputs_of,
    speech_encoder,
    speech_request,
)

logger = logging.getLogger(__name__)


class SpokenAnswers:
    """Answers of one connection: speaks a text, and sends its events."""

    def __init__(self, gateway: Gateway, scope: Scope, events: SpeechEvents) -> None:
        self._gateway = gateway
        self._scope = scope
        self._state = state_of(scope)
        self._events = events

    async def speak(self, utterance: Utterance) -> None:
        """Answer with a text's speech, or its failure; ClientTooSlow ends the connection."""
        try:
            first, is_whole = await begun(utterance.text)
            if not first:  # its end came alone
                self._events.done(utterance, "completed", total_sentences=0)
                return
            state = new_answer(self._scope, utterance.number)
            with answered(self._gateway, self._scope, SPEECH_STREAM, state):
                await self._answer(utterance, first, is_whole, state)
        except ClientTooSlow:
            raise
        except ApiError as error:
            self._events.error(error.named(input_of), utterance)
            self._events.done(utterance, "failed")
        except Exception:
            logger.exception("a spoken text failed")
            self._events.error(internal_error(), utterance)
            self._events.done(utterance, "failed")
        else:
            self._events.done(utterance, "completed")

    async def _answer(
        self, utterance: Utterance, first: str, is_whole: bool, state: RequestState
    ) -> None:
        self._state.charge()
        config = utterance.voice.config
        flights = self._gateway.runtime.flights
        ticket = state.at_end.enter_context(flights.admit(outputs_of(self._gateway.runtime.graph)))
        form = config.response_format or "pcm"
        usage, num_bytes = SpeechUsage(), 0
        outputs = encoded(
            self._outputs(utterance, first, is_whole, ticket),
            partial(speech_encoder, form, config.speed or 1.0),
        )
        is_started = False
        async with due_at(loop_time_in(self._state.timeout_s)), aclosing(outputs):
            async for output in outputs:
                usage.add(output)
                if not isinstance(output, AudioOutput):
                    continue
                if not is_started:
                    is_started = True
                    self._events.start(utterance, form, output, first)
                if output.data:
                    self._events.audio(utterance, output.data)
                    num_bytes += len(output.data)
                    state.trace.timeline.mark(GATEWAY, FIRST_AUDIO)
            await self._events.outbox.empty()
        self._events.audio_done(utterance, num_bytes, usage)

    def _outputs(
        self, utterance: Utterance, first: str, is_whole: bool, ticket: Ticket
    ) -> AsyncGenerator[Output, None]:
        voice, runtime = utterance.voice, self._gateway.runtime
        asked = voice.config.model_copy(update={"input": first})
        request = speech_request(asked, runtime, voice.choice)
        request = with_reference(request, voice.reference)
        if voice.takes_pieces:  # also one that is whole: a model may speak it in another way then
            return ticket.run(request.with_text(utterance.text))
        if is_whole:
            return spoken(ticket, pieces_of_request(request, voice.max_text))
        return spoken_by_sentences(ticket, request, utterance.text, voice.max_text)
