"""GET /version: vLLM's, under the name that its own server gives it, and ours."""

from collections.abc import Mapping

from fastapi import APIRouter

from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.operation.state_answers import Version
from omnistage.server.http.openapi import described
from omnistage.stage_configs.packages import VLLM_PACKAGES, installed


def routes(gateway: Gateway) -> APIRouter:
    """GET /version."""
    router = APIRouter()
    told = {"version": installed(*VLLM_PACKAGES), "omnistage": installed("omnistage")}

    @router.get("/version", **described("Get the version", Version))
    async def versions() -> Mapping[str, str]:
        return told

    return router
