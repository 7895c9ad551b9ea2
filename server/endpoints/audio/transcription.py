"""POST /v1/audio/transcriptions and /v1/audio/translations: a chat about an audio file."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.common.trace import FIRST_TEXT, GATEWAY, current_trace
from omnistage.server.endpoints.answers import TextAnswer
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.form_body import read_fields
from omnistage.server.http.openapi import EVENTS, described
from omnistage.server.http.request import HttpCaller, in_thread
from omnistage.server.http.sse import BareEventStream, Event
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.tasks.transcription import (
    RunningTranscript,
    check_hears,
    run_transcription,
)
from omnistage.server.tasks.transcripts.transcription_fields import (
    AudioRequest,
    TranscriptionRequest,
    TranslationRequest,
    request_of,
)


def routes(gateway: Gateway) -> APIRouter:
    """POST of both; FastAPI does not read their bodies, so their schema is given."""
    router = APIRouter()
    answers = Transcriptions(gateway)
    for name, kind, answer in (
        ("transcriptions", TranscriptionRequest, answers.transcribe),
        ("translations", TranslationRequest, answers.translate),
    ):
        form = {"multipart/form-data": {"schema": kind.model_json_schema()}}
        body = {"required": True, "content": form}
        about = described(f"Create a {name[:-1]}", TextAnswer, ("text/plain", EVENTS), body=body)
        router.post(f"/v1/audio/{name}", **about)(answer)
    return router


@dataclass(frozen=True, slots=True)
class Transcriptions:
    """Answers what is asked about one audio file by running it through the graph."""

    gateway: Gateway

    async def transcribe(self, http: HttpRequest) -> Response:
        """Write down what was said, in its own language."""
        return await self._create(TranscriptionRequest, http)

    async def translate(self, http: HttpRequest) -> Response:
        """Write down what was said, in English."""
        return await self._create(TranslationRequest, http)

    async def _create(self, kind: type[AudioRequest], http: HttpRequest) -> Response:
        check_hears(self.gateway.runtime.graph)
        fields = await read_fields(http, files=("file",))
        asked = await in_thread(http, lambda: request_of(kind, fields))
        running = await run_transcription(self.gateway, asked, HttpCaller(http))
        headers = warning_headers(asked.unknown)
        if not asked.stream:
            return await whole_answer(http, running.request.id, self._body(running), headers)
        limits = (self.gateway.options.keep_alive_s, self.gateway.options.max_unsent_bytes)
        return BareEventStream(self._events(running), *limits, headers)

    async def _events(self, running: RunningTranscript) -> AsyncGenerator[Event, None]:
        timeline = current_trace().timeline
        async with aclosing(running.events()) as events:
            async for event in events:
                yield event
                timeline.mark(GATEWAY, FIRST_TEXT)
        yield running.transcript.done

    async def _body(self, running: RunningTranscript) -> Any:
        async with aclosing(self._events(running)) as events:
            async for _ in events:
                continue
        return running.transcript.body
