"""POST /v1/audio/speech: a given text spoken as it is, while it is made."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.audio.encoding import encoded
from omnistage.server.endpoints.examples import speech_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.errors import ApiError
from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import unless_gone
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.sse import BareEventStream, Event, EventStream
from omnistage.server.http.state import held, state_of
from omnistage.server.runtime.request import AudioOutput, Outputs, Request
from omnistage.server.runtime.ticket import Ticket
from omnistage.server.speech.continuous import spoken
from omnistage.server.speech.requests import SpeechUsage, pieces_of_request, with_reference
from omnistage.server.tasks.speech_fields import SpeechRequest
from omnistage.server.tasks.speech_request import (
    about_input,
    max_text_of,
    speech_choice,
    speech_encoder,
    speech_request,
)
from omnistage.server.trace import FIRST_AUDIO, GATEWAY, current_trace

CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/audio/speech."""
    router = APIRouter(route_class=JsonRoute)
    body = json_examples(speech_examples(gateway.runtime.graph))
    about = described("Create speech", also=(*CONTENT_TYPES.values(), EVENTS), body=body)
    router.post("/v1/audio/speech", **about)(Speech(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class Speech:
    """Answers speech requests by running them through the graph."""

    gateway: Gateway

    async def create(self, asked: SpeechRequest, http: HttpRequest) -> Response:
        """Speak while the audio is made: as one file, or as events; a failure cuts the file off."""
        gateway = self.gateway
        choice = speech_choice(asked, gateway.runtime, gateway.voices)
        request = speech_request(asked, gateway.runtime, choice)
        max_text = max_text_of(gateway.runtime, asked.instructions)
        ticket = held(http, gateway.runtime.flights.admit(request.outputs))
        if choice.has_sound:
            async with within_deadline(http.scope):
                until = state_of(http.scope).at_end
                loading = choice.reference(gateway.voices, gateway.media, until)
                request = with_reference(request, await unless_gone(http.receive, loading))
        requests = pieces_of_request(request, max_text)
        form = asked.response_format or "mp3"
        outputs = spoken(ticket, requests, self._sent(ticket, requests[0]))
        events = self._events(encoded(outputs, partial(speech_encoder, form, asked.speed or 1.0)))
        limit = gateway.max_unsent_bytes
        headers = warning_headers(asked.unknown)
        if asked.stream_format == "sse":
            return BareEventStream(events, gateway.keep_alive_s, limit, headers)
        return AudioStream(events, None, limit, {**headers, "Content-Type": CONTENT_TYPES[form]})

    def _sent(self, ticket: Ticket, request: Request) -> Outputs:
        try:
            return ticket.run(request)
        except ApiError as error:
            raise about_input(error) from None

    async def _events(self, outputs: Outputs) -> AsyncGenerator[Event, None]:
        timeline = current_trace().timeline
        usage = SpeechUsage()
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    usage.add(output)
                    if isinstance(output, AudioOutput) and (output.data or output.codes):
                        codes = {"codes": output.codes} if output.codes else {}
                        yield {"type": "speech.audio.delta", "audio": output.data, **codes}
                        timeline.mark(GATEWAY, FIRST_AUDIO)
        except ApiError as error:
            raise about_input(error) from None
        yield {"type": "speech.audio.done", "usage": usage.to_dict()}


class AudioStream(EventStream):
    """The audio of speech events alone: one file, which a failure cuts off."""

    def _encode(self, event: Event) -> bytes:
        audio: bytes = event.get("audio", b"")
        return audio

    def _ending(self, failure: ApiError | None) -> bytes | None:
        return b"" if failure is None else None
