"""GET /admin/traces: the latest requests, and where the time of one went."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.errors import ApiError
from omnistage.server.telemetry.recent import details_of, summary_of


def routes(gateway: Gateway) -> APIRouter:
    """The requests that are still remembered; who may ask is judged elsewhere.

    Without an admin key they are closed with everything else below /admin.
    """
    router = APIRouter(prefix="/admin/traces", include_in_schema=False)
    if not gateway.has_admin:
        return router
    recent = gateway.traces

    @router.get("", response_model=None)
    async def latest() -> Mapping[str, Any]:
        return {"traces": [summary_of(trace) for trace in recent.latest()]}

    @router.get("/{name}", response_model=None)
    async def one(name: str) -> Mapping[str, Any]:
        trace = recent.find(name)
        if trace is None:
            message = f"No request {name} among the last {recent.num_traces}."
            raise ApiError(404, message, code="unknown_request")
        return details_of(trace)

    return router
