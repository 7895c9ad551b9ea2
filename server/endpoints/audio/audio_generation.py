"""POST /v1/audio/generate: audio of a description, as a file. vllm-omni's, not OpenAI's."""

import asyncio
from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.audio.speech import CONTENT_TYPES
from omnistage.server.endpoints.examples import audio_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.media_form import media_body, read_media_form
from omnistage.server.http.openapi import described
from omnistage.server.http.request import HttpCaller
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.tasks.audio_task import (
    DEFAULT_FORMAT,
    MEDIA,
    WORDS,
    GeneratedAudioRequest,
    RunningAudio,
    run_audio,
)


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/audio/generate."""
    router = APIRouter()
    body = media_body(GeneratedAudioRequest, MEDIA, audio_examples(gateway.runtime.graph))
    about = described("Generate audio", also=tuple(CONTENT_TYPES.values()), body=body)
    router.post("/v1/audio/generate", **about)(AudioGeneration(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class AudioGeneration:
    """Answers requests for audio by running them through the graph."""

    gateway: Gateway

    async def create(self, http: HttpRequest) -> Response:
        """Answer with a file once all of it is made."""
        form = await read_media_form(http, GeneratedAudioRequest, MEDIA, WORDS)
        running = await run_audio(self.gateway, form.asked, HttpCaller(http), form.media)
        file_format = form.asked.response_format or DEFAULT_FORMAT
        headers = warning_headers(form.asked.unknown)
        making = self._make(running, file_format)
        media_type = CONTENT_TYPES[file_format]
        return await whole_answer(http, running.request.id, making, headers, media_type)

    async def _make(self, running: RunningAudio, file_format: str) -> bytes:
        track = await running.made()
        return await asyncio.to_thread(track.encoded, file_format)
