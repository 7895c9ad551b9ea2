"""POST /v1/audio/voices, GET and DELETE /v1/audio/voices/{id}: voices made from a sound."""

from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from omnistage.server.common.errors import ApiError
from omnistage.server.common.fields import parse, warning_headers
from omnistage.server.endpoints.answers import DeletedVoice, StoredVoice
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import unless_gone
from omnistage.server.http.form_body import read_fields
from omnistage.server.http.openapi import described
from omnistage.server.tasks.speech.reference import Reference, samples_of
from omnistage.server.tasks.speech.voice_fields import VoiceRequest
from omnistage.server.tasks.speech.voice_files import VoiceRecord
from omnistage.server.tasks.speech_task import speech_of
from omnistage.stage_configs.json_types import JsonMap

PATH = "/v1/audio/voices"


def routes(gateway: Gateway) -> APIRouter:
    """POST, GET and DELETE; FastAPI does not read the form, so its schema is given."""
    router = APIRouter()
    voices = VoiceRequests(gateway)
    form = {"multipart/form-data": {"schema": VoiceRequest.model_json_schema()}}
    body = {"required": True, "content": form}
    router.post(PATH, **described("Create a voice", StoredVoice, body=body))(voices.create)
    router.get(f"{PATH}/{{voice_id}}", **described("Retrieve a voice", StoredVoice))(voices.get)
    router.delete(f"{PATH}/{{voice_id}}", **described("Delete a voice", DeletedVoice))(
        voices.delete
    )
    return router


@dataclass(frozen=True, slots=True)
class VoiceRequests:
    """Stores voices, tells of them and deletes them."""

    gateway: Gateway

    async def create(self, http: HttpRequest) -> Response:
        """Make a voice of a sound of one speaker, for /v1/audio/speech."""
        self._check_takes_sound()
        asked = parse(VoiceRequest, await read_fields(http, files=("audio_sample",)))
        asked.check()
        async with within_deadline(http.scope):
            reference = await unless_gone(http.receive, self._reference(asked))
        taken = self.gateway.runtime.fleet.voices
        voice = await self.gateway.voices.add(asked.name, asked.consent, reference, taken)
        return JSONResponse(card_of(voice), headers=warning_headers(asked.unknown))

    async def get(self, voice_id: str) -> JsonMap:
        """One that is stored."""
        return card_of(self.gateway.voices.get(voice_id))

    async def delete(self, voice_id: str) -> JsonMap:
        """Delete it; what is spoken with it is spoken to the end."""
        await self.gateway.voices.delete(voice_id)
        return {"id": voice_id, "object": "audio.voice.deleted", "deleted": True}

    async def _reference(self, asked: VoiceRequest) -> Reference:
        data, text = asked.audio_sample, asked.ref_text
        return await self.gateway.media.read(
            len(data), lambda: Reference.of(samples_of(data, "audio_sample"), text)
        )

    def _check_takes_sound(self) -> None:
        if not speech_of(self.gateway.runtime).takes_sound:
            message = "This model makes no voice from a sound."
            raise ApiError(400, message, code="unsupported_model")


def card_of(voice: VoiceRecord) -> JsonMap:
    """OpenAI's shape."""
    return {
        "object": "audio.voice",
        "id": voice.id,
        "name": voice.name,
        "created_at": voice.created_at,
        "type": "audio_sample",
    }
