"""GET /admin/traces: the latest requests, and where the time of one went."""

from fastapi import APIRouter, Depends, Request

from omnistage.server.common.errors import ApiError
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.telemetry.recent import details_of, summary_of
from omnistage.stage_configs.json_types import JsonMap

# Who may ask a server without keys: programs on its own machine, by one of its own names.
LOOPBACK = ("127.0.0.1", "::1")
LOOPBACK_NAMES = (*LOOPBACK, "localhost")
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
OWN_MACHINE = (
    "Traces of a server without keys are for its own machine, not through a proxy; "
    "start it with --admin-key to read them from elsewhere."
)
MAX_NAMED = 5  # of the requests that a prefix may mean


def routes(gateway: Gateway) -> APIRouter:
    """The requests that are still remembered.

    With an admin key, which is checked elsewhere; a server without any keys answers programs on
    its own machine alone.
    """
    guard = [] if gateway.options.admin_keys else [Depends(refuse_others)]
    router = APIRouter(prefix="/admin/traces", include_in_schema=False, dependencies=guard)
    if gateway.options.keys and not gateway.options.admin_keys:
        return router
    recent = gateway.traces

    @router.get("", response_model=None)
    async def latest() -> JsonMap:
        return {"traces": [summary_of(trace) for trace in recent.latest()]}

    @router.get("/{name}", response_model=None)
    async def one(name: str) -> JsonMap:
        found = recent.find(name)
        if not found:
            message = f"No request {name} among the last {recent.num_traces}."
            raise ApiError(404, message, code="unknown_request")
        if len(found) > 1:
            ids = ", ".join(trace.request_id for trace in found[:MAX_NAMED])
            message = f"{len(found)} requests begin with {name}, the latest: {ids}."
            raise ApiError(400, message, code="ambiguous_request")
        return details_of(found[0])

    return router


async def refuse_others(request: Request) -> None:
    """Raises ApiError for a request from another machine, or that a proxy or a page may have sent.

    Pages of other sites name their own host (DNS rebinding); proxies say for whom they ask.
    """
    client = "" if request.client is None else request.client.host
    is_here = client in LOOPBACK and request.url.hostname in LOOPBACK_NAMES
    is_proxied = request.scope.get("root_path") or any(one in request.headers for one in FORWARDED)
    if not is_here or is_proxied:
        raise ApiError(403, OWN_MACHINE, code="admin_disabled")
