"""GET /v1/images/files/{id}: images that were answered by URL."""

from fastapi import APIRouter, Response

from omnistage.server.common.errors import ApiError
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described
from omnistage.server.media.images import CONTENT_TYPES
from omnistage.server.tasks.images.store import PATH


def routes(gateway: Gateway) -> APIRouter:
    """GET /v1/images/files/{id}."""
    router = APIRouter()

    @router.get(f"{PATH}/{{image_id}}", **described("Download an image", also=CONTENT_TYPES))
    async def image_file(image_id: str) -> Response:
        image = gateway.images.get(image_id)
        if image is None:
            raise ApiError(404, "No such image, or it has expired.", code="image_not_found")
        headers = {"Cache-Control": "private, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(image.data, headers=headers, media_type=image.content_type)

    return router
