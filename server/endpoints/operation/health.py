"""Health: whether the server lives, whether it can serve, and the state of each stage."""

from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import Response

from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.operation.state_answers import Health, Load, Readiness
from omnistage.server.http.openapi import Responses, described, errors, success
from omnistage.server.runtime.readiness import stopping, unavailable
from omnistage.stage_configs.json_types import JsonMap

STAGE_LOST = "A stage has ended and is not started again: restart the server."


def routes(gateway: Gateway) -> APIRouter:
    """GET /health, /ready, /ping and /load."""
    router = APIRouter()
    lost: Responses = {503: success(STAGE_LOST, Health)}

    @router.get("/health", **described("Get the state of each stage", Health, more=lost))
    async def health(response: Response) -> JsonMap:
        if gateway.runtime.fleet.is_broken:
            response.status_code = 503
        return {"stages": gateway.runtime.fleet.health}

    about_ready = described("Check that all stages are ready", Readiness, more=errors(503))

    # What SageMaker asks; vLLM's has both methods.
    @router.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
    @router.get("/ready", **about_ready)
    async def ready() -> JsonMap:
        if gateway.runtime.flights.is_stopping:
            raise stopping()
        fleet = gateway.runtime.fleet
        if reasons := fleet.unready or fleet.closed:
            stages = ", ".join(f"{name} ({reason})" for name, reason in reasons.items())
            raise unavailable(f"Not ready: {stages}.", code="not_ready")
        return {"ready": True}

    @router.get("/load", **described("Get the number of requests", Load))
    async def load() -> Mapping[str, int]:
        flights = gateway.runtime.flights
        return {"server_load": flights.num_running + flights.num_waiting}

    return router
