"""POST /v1/images/generations and /v1/images/edits."""

import logging

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from starlette.requests import ClientDisconnect

from omnistage.server.endpoints.answers import ImagesAnswer
from omnistage.server.endpoints.examples import edit_examples, image_examples
from omnistage.server.errors import CLIENT_CLOSED_REQUEST
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import EVENTS, described
from omnistage.server.http.served import check_makes, check_model
from omnistage.server.http.sse import KEEP_ALIVE_S, NamedEventStream
from omnistage.server.http.state import held
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.images.answer import MAX_UNSENT_BYTES, ImageAnswer
from omnistage.server.images.form import EditForm
from omnistage.server.images.form_schema import edit_body
from omnistage.server.images.schema import IMAGE_ONLY, ImageRequest
from omnistage.server.images.store import ImageStore
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.picture_load import load_pictures
from omnistage.server.media.pictures import InputPictures
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph

logger = logging.getLogger(__name__)


class Images:
    """Answers image requests by running them through the graph."""

    def __init__(
        self,
        runtime: Runtime,
        media: MediaLoader,
        store: ImageStore,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._runtime = runtime
        self._media = media
        self._store = store
        self._keep_alive_s = keep_alive_s

    async def generate(self, asked: ImageRequest, http: HttpRequest) -> Response:
        """Pictures from words."""
        self._check(asked)
        given = InputPictures()
        request = asked.to_request(given)
        ticket = held(http, self._runtime.flights.admit(IMAGE_ONLY))
        answer = ImageAnswer("image_generation", asked, given, request, ticket)
        return await self._respond(answer, http)

    async def edit(self, http: HttpRequest) -> Response:
        """Pictures from pictures."""
        try:
            form = await EditForm.read(http)
        except ClientDisconnect:
            logger.info("%s: the client hung up (499)", http.url.path)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        self._check(form.asked)
        ticket = held(http, self._runtime.flights.admit(IMAGE_ONLY))
        given = await load_pictures(form.images, form.mask, self._media, http)
        request = form.asked.to_request(given)
        answer = ImageAnswer("image_edit", form.asked, given, request, ticket)
        return await self._respond(answer, http)

    async def _respond(self, answer: ImageAnswer, http: HttpRequest) -> Response:
        """Stream or collect."""
        asked = answer.asked
        headers = warning_headers(asked.unknown)
        if asked.stream:
            events = answer.events()
            return NamedEventStream(events, self._keep_alive_s, MAX_UNSENT_BYTES, headers)
        whole = answer.whole(self._store, str(http.base_url).rstrip("/"))
        return await whole_answer(http, answer.request.id, whole, headers)

    def _check(self, asked: ImageRequest) -> None:
        graph = self._runtime.graph
        check_model(asked.model, graph.model)
        check_makes("image", graph.outputs, "images")


def image_routes(images: Images, graph: StageGraph) -> APIRouter:
    """POST of both; FastAPI does not read the bodies of edits, so it is told of them."""
    router = APIRouter()
    json_routes = APIRouter(route_class=JsonRoute)
    about = described("Make pictures", ImagesAnswer, (EVENTS,), image_examples(graph))
    json_routes.post("/v1/images/generations", **about)(images.generate)
    router.include_router(json_routes)
    about = described("Edit pictures", ImagesAnswer, (EVENTS,))
    body = {"requestBody": edit_body(edit_examples(graph))}
    router.post("/v1/images/edits", **about, openapi_extra=body)(images.edit)
    return router
