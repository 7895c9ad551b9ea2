"""GET /metrics: what the gateway and its stages measure, for Prometheus."""

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described


def routes(gateway: Gateway) -> APIRouter:
    """GET /metrics."""
    router = APIRouter()

    @router.get("/metrics", **described("Get metrics for Prometheus", also=("text/plain",)))
    async def expose() -> Response:
        return Response(gateway.metrics.page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router
