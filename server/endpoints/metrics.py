"""GET /metrics: what one app has answered and how its stages are, for Prometheus."""

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described


def routes(gateway: Gateway) -> APIRouter:
    """GET /metrics."""
    router = APIRouter()

    @router.get("/metrics", **described("Count for Prometheus", also=("text/plain",)))
    async def expose() -> Response:
        content = generate_latest(gateway.metrics.registry)
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router
