"""GET /v1/audio/voices: what clients with a picker ask a speech server."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from omnistage.server.endpoints.answers import Lists
from omnistage.server.endpoints.audio.stored_voices import card_of
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described, errors
from omnistage.server.http.state import state_of
from omnistage.server.runtime.readiness import unavailable
from omnistage.server.tasks.speech.voice_files import VoiceRecord
from omnistage.server.tasks.speech_task import takes_sound
from omnistage.stage_configs.json_types import JsonMap


def routes(gateway: Gateway) -> APIRouter:
    """GET /v1/audio/voices."""
    router = APIRouter()

    @router.get("/v1/audio/voices", **described("List voices", Lists, more=errors(503)))
    async def voices(
        http: HttpRequest, format: Literal["vllm"] | None = None
    ) -> Mapping[str, Sequence[Any]]:
        """Returns the voices of the model, and to clients with a key the stored ones."""
        names = gateway.runtime.fleet.voices
        speaks = "audio" in gateway.runtime.graph.outputs
        if not names and speaks and gateway.runtime.fleet.unready:
            message = "The voices are not known yet: stages are still loading."
            raise unavailable(message, code="loading")
        is_told = not gateway.options.keys or state_of(http.scope).key is not None
        stored = gateway.voices.all if is_told else ()
        cards: list[Mapping[str, str]] = [{"id": name, "name": name} for name in names]
        if takes_sound(gateway.runtime):  # others cannot speak with them
            cards += [{"id": voice.id, "name": voice.name} for voice in stored]
        called = [card["name"] for card in cards]
        uploaded = [stored_card(voice) for voice in stored]
        if format == "vllm":
            return {"voices": called, "uploaded_voices": uploaded}
        return {"voices": cards, "names": called, "uploaded_voices": uploaded}

    return router


def stored_card(voice: VoiceRecord) -> JsonMap:
    """Returns what is told of a stored voice beside what GET tells of it alone."""
    more = {"consent": voice.consent, "ref_text": voice.ref_text}
    return {**card_of(voice), **more, "seconds": round(voice.seconds, 3)}
