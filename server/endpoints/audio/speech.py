"""POST /v1/audio/speech: a given text spoken as it is, while it is made."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.errors import ApiError
from omnistage.server.common.fields import warning_headers
from omnistage.server.common.trace import FIRST_AUDIO, GATEWAY, current_trace
from omnistage.server.endpoints.examples import speech_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.request import HttpCaller, JsonRoute
from omnistage.server.http.sse import BareEventStream, Event, EventStream
from omnistage.server.media.audio.encoding import encoded
from omnistage.server.runtime.request import AudioOutput, Outputs
from omnistage.server.tasks.speech.requests import SpeechUsage
from omnistage.server.tasks.speech.speech_fields import SpeechRequest
from omnistage.server.tasks.speech_task import run_speech, speech_encoder

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
    router.post("/v1/audio/speech", **about)(SpeechEndpoint(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class SpeechEndpoint:
    """Answers speech requests by running them through the graph."""

    gateway: Gateway

    async def create(self, asked: SpeechRequest, http: HttpRequest) -> Response:
        """Speak while the audio is made: as one file, or as events; a failure cuts the file off."""
        running = await run_speech(self.gateway, asked, HttpCaller(http))
        form = asked.response_format or "mp3"
        encoder = partial(speech_encoder, form, asked.speed or 1.0)
        events = self._events(encoded(running.outputs, encoder))
        limits = (self.gateway.options.keep_alive_s, self.gateway.options.max_unsent_bytes)
        headers = warning_headers(asked.unknown)
        if asked.stream_format == "sse":
            return BareEventStream(events, *limits, headers)
        content_type = {"Content-Type": CONTENT_TYPES[form]}
        return AudioStream(events, None, limits[1], {**headers, **content_type})

    async def _events(self, outputs: Outputs) -> AsyncGenerator[Event, None]:
        timeline = current_trace().timeline
        usage = SpeechUsage()
        async with aclosing(outputs):
            async for output in outputs:
                usage.add(output)
                if isinstance(output, AudioOutput) and (output.data or output.codes):
                    codes = {"codes": output.codes} if output.codes else {}
                    yield {"type": "speech.audio.delta", "audio": output.data, **codes}
                    timeline.mark(GATEWAY, FIRST_AUDIO)
        yield {"type": "speech.audio.done", "usage": usage.to_dict()}


class AudioStream(EventStream):
    """The audio of speech events alone: one file, which a failure cuts off."""

    def _encode(self, event: Event) -> bytes:
        audio: bytes = event.get("audio", b"")
        return audio

    def _ending(self, failure: ApiError | None) -> bytes | None:
        return b"" if failure is None else None
