"""POST /v1/audio/speech: a given text spoken as it is, while it is made."""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.audio.contract import AudioEncoder
from omnistage.server.audio.encoder import MakeEncoder, make_encoder
from omnistage.server.audio.encoding import encoded
from omnistage.server.audio.time_stretch import TimeStretch
from omnistage.server.chat.translate import (
    checked_stage_params,
    known_speaker,
    stage_params_of,
)
from omnistage.server.endpoints.examples import speech_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.speech_fields import SpeechRequest
from omnistage.server.errors import ApiError
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.served import check_model
from omnistage.server.http.sse import BareEventStream, Event, EventStream
from omnistage.server.http.state import held
from omnistage.server.runtime.request import AudioOutput, Request, TextOutput
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.runtime.ticket import Ticket
from omnistage.server.trace import FIRST_AUDIO, GATEWAY, current_trace
from omnistage.stage_configs.families import KINDS

CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
OUTPUTS = ("text", "audio")  # of the text comes only how many tokens it has


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/audio/speech."""
    router = APIRouter(route_class=JsonRoute)
    body = json_examples(speech_examples(gateway.runtime.graph))
    about = described("Speak a text", also=(*CONTENT_TYPES.values(), EVENTS), body=body)
    router.post("/v1/audio/speech", **about)(Speech(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class Speech:
    """Answers speech requests by running them through the graph."""

    gateway: Gateway

    async def create(self, asked: SpeechRequest, http: HttpRequest) -> Response:
        """Speak while the audio is made: as one file, or as events; a failure cuts the file off."""
        request = speech_request(asked, self.gateway.runtime)
        ticket = held(http, self.gateway.runtime.flights.admit(request.outputs))
        form = asked.response_format or "mp3"
        events = self._events(request, partial(speech_encoder, form, asked.speed or 1.0), ticket)
        limit = self.gateway.max_unsent_bytes
        headers = warning_headers(asked.unknown)
        if asked.stream_format == "sse":
            return BareEventStream(events, self.gateway.keep_alive_s, limit, headers)
        return AudioStream(events, None, limit, {**headers, "Content-Type": CONTENT_TYPES[form]})

    async def _events(
        self, request: Request, make_encoder: MakeEncoder, ticket: Ticket
    ) -> AsyncGenerator[Event, None]:
        num_tokens = num_frames = 0
        timeline = current_trace().timeline
        outputs = encoded(ticket.run(request), make_encoder)
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    if isinstance(output, TextOutput):
                        num_tokens = output.chunk["usage"]["prompt_tokens"]
                    elif isinstance(output, AudioOutput):
                        num_frames = output.num_frames
                        if output.data:
                            yield {"type": "speech.audio.delta", "audio": output.data}
                            timeline.mark(GATEWAY, FIRST_AUDIO)
        except ApiError as error:
            raise about_input(error) from None
        usage = {
            "input_tokens": num_tokens,
            "output_tokens": num_frames,
            "total_tokens": num_tokens + num_frames,
        }
        yield {"type": "speech.audio.done", "usage": usage}


def speech_request(asked: SpeechRequest, runtime: Runtime) -> Request:
    """The request as the stages get it; raises ApiError."""
    graph = runtime.graph
    check_model(asked.model, graph.served_names)
    if (
        "audio" not in graph.outputs
        or not KINDS[graph.stages[graph.entry_of("audio")].kind].reads_out
    ):
        message = "This model does not speak a given text."
        raise ApiError(400, message, code="unsupported_model")
    path: Collection[str] = set(graph.path(OUTPUTS)) - {graph.entry_of("audio")}
    given = checked_stage_params(asked.stage_params or {}, graph, path)
    return Request(
        id=f"speech-{uuid4().hex}",
        outputs=OUTPUTS,
        body={"input": asked.input, "instructions": asked.instructions or ""},
        speaker=known_speaker(asked.voice, runtime.fleet.voices, "voice"),
        stage_params=stage_params_of(graph, path, given),
        seed=asked.seed,
    )


def about_input(error: ApiError) -> ApiError:
    """The error with the field to blame: to the stages the text is one turn of a chat."""
    if error.param == "messages":
        error.param = "input"
    return error


def speech_encoder(form: str, speed: float, samples: SampleFormat) -> AudioEncoder:
    """What encodes samples to a stream that is heard at `speed` times their pace."""
    encoder = make_encoder(form, is_streamed=True, samples=samples)
    return encoder if speed == 1.0 else TimeStretch(encoder, speed, samples)


class AudioStream(EventStream):
    """The audio of speech events alone: one file, which a failure cuts off."""

    def _encode(self, event: Event) -> bytes:
        audio: bytes = event.get("audio", b"")
        return audio

    def _ending(self, failure: ApiError | None) -> bytes | None:
        return b"" if failure is None else None
