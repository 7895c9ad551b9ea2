"""What clients with a picker ask a speech server: its voices and its models."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter

from omnistage.server.http.openapi import described
from omnistage.server.runtime.readiness import unavailable
from omnistage.server.runtime.runtime import Runtime

Lists = dict[str, list[Any]]


def voice_routes(runtime: Runtime) -> APIRouter:
    """GET /v1/audio/voices and /v1/audio/models."""
    router = APIRouter()

    @router.get("/v1/audio/voices", **described("List the voices", Lists, errors=(503,)))
    async def voices(format: Literal["vllm"] | None = None) -> Mapping[str, Sequence[Any]]:
        names = runtime.fleet.voices
        if not names and "audio" in runtime.graph.outputs and runtime.fleet.unready:
            message = "The voices are not known yet: stages are still loading."
            raise unavailable(message, code="loading")
        cards = [{"id": name, "name": name} for name in names]
        listed = {"voices": names} if format == "vllm" else {"voices": cards, "names": names}
        return {**listed, "uploaded_voices": []}

    @router.get("/v1/audio/models", **described("List the models that speak", Lists))
    async def models() -> Mapping[str, Sequence[Mapping[str, str]]]:
        name = runtime.graph.model
        return {"models": [{"id": name, "name": name}]}

    return router
