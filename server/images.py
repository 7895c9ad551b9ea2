"""POST /v1/images/generations and /v1/images/edits."""

import asyncio
import logging

from fastapi import Request as HttpRequest
from fastapi import Response
from starlette.requests import ClientDisconnect

from omnistage.server.errors import ApiError
from omnistage.server.image_answer import MAX_UNSENT_BYTES, ImageAnswer
from omnistage.server.image_form import EditForm
from omnistage.server.image_schema import ImageRequest
from omnistage.server.image_store import ImageStore
from omnistage.server.models import check_model
from omnistage.server.orchestrator import Orchestrator
from omnistage.server.pictures import InputPictures, read_pictures
from omnistage.server.sse import KEEP_ALIVE_S, NamedEventStream
from omnistage.server.whole_answer import CLIENT_CLOSED_REQUEST, warning_headers, whole_answer
from omnistage.stages.graph import StageGraph

logger = logging.getLogger(__name__)


class Images:
    """Answers image requests by running them through the graph."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        store: ImageStore,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._orchestrator = orchestrator
        self._store = store
        self._keep_alive_s = keep_alive_s

    async def generate(self, asked: ImageRequest, http: HttpRequest) -> Response:
        """Pictures from words."""
        return await self._respond("image_generation", asked, InputPictures(), http)

    async def edit(self, http: HttpRequest) -> Response:
        """Pictures from pictures."""
        try:
            form = await EditForm.read(http)
        except ClientDisconnect:
            logger.info("%s: the client hung up (499)", http.url.path)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        self._check(form.asked)
        given = await asyncio.to_thread(read_pictures, form.images, form.mask)
        return await self._respond("image_edit", form.asked, given, http)

    async def _respond(
        self, prefix: str, asked: ImageRequest, given: InputPictures, http: HttpRequest
    ) -> Response:
        """Validate and admit, then stream or collect."""
        self._check(asked)
        request = asked.to_request(given)
        self._orchestrator.admit(request.outputs)
        headers = warning_headers(asked.unknown)
        answer = ImageAnswer(prefix, asked, given, request, self._orchestrator)
        if asked.stream:
            stream = NamedEventStream(answer.events(), self._keep_alive_s, MAX_UNSENT_BYTES)
            stream.headers.update(headers)
            return stream
        whole = answer.whole(self._store, str(http.base_url).rstrip("/"))
        return await whole_answer(http, request.id, whole, headers)

    def _check(self, asked: ImageRequest) -> None:
        graph = self._orchestrator.graph
        check_model(asked.model, graph.model)
        check_makes_images(graph)


def check_makes_images(graph: StageGraph) -> None:
    """Raise ApiError for a graph that makes none."""
    if "image" not in graph.outputs:
        makes = ", ".join(sorted(graph.outputs))
        message = f"This model makes no images; it makes {makes}."
        raise ApiError(400, message, code="unsupported_model")
