"""POST /v1/images/generations and /v1/images/edits."""

import logging
from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from starlette.requests import ClientDisconnect

from omnistage.server.common.errors import CLIENT_CLOSED_REQUEST
from omnistage.server.common.fields import warning_headers
from omnistage.server.common.served import check_model
from omnistage.server.endpoints.answers import ImagesAnswer
from omnistage.server.endpoints.edit_form import EditForm, controls_of, edit_body
from omnistage.server.endpoints.examples import edit_examples, image_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.caller import HttpCaller
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.sse import NamedEventStream
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.tasks.image_task import RunningImages, check_draws, run_images
from omnistage.server.tasks.images.answer import MAX_UNSENT_BYTES, ImageAnswer
from omnistage.server.tasks.images.schema import GenerationRequest, ImageRequest

logger = logging.getLogger(__name__)


def routes(gateway: Gateway) -> APIRouter:
    """POST of both; FastAPI does not read the bodies of edits, so their schema is given."""
    router, json_router = APIRouter(), APIRouter(route_class=JsonRoute)
    images, graph = Images(gateway), gateway.runtime.graph
    body = json_examples(image_examples(graph))
    about = described("Create an image", ImagesAnswer, (EVENTS,), body=body)
    json_router.post("/v1/images/generations", **about)(images.generate)
    about = described(
        "Create an image edit", ImagesAnswer, (EVENTS,), body=edit_body(edit_examples(graph))
    )
    router.post("/v1/images/edits", **about)(images.edit)
    router.include_router(json_router)
    return router


@dataclass(frozen=True, slots=True)
class Images:
    """Answers image requests by running them through the graph."""

    gateway: Gateway

    async def generate(self, asked: GenerationRequest, http: HttpRequest) -> Response:
        """Make images of words: whole, or as events with previews."""
        self._check(asked)
        caller = HttpCaller(http)
        controls = await caller.compute(lambda: controls_of(asked.control_image))
        running = await run_images(self.gateway, asked, caller, controls=controls)
        return await self._respond("image_generation", asked, running, http)

    async def edit(self, http: HttpRequest) -> Response:
        """Make images of images and words: whole, or as events with previews."""
        try:
            form = await EditForm.read(http)
        except ClientDisconnect:
            logger.debug("%s: the client hung up (499)", http.url.path)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        self._check(form.asked)
        caller = HttpCaller(http)
        running = await run_images(
            self.gateway, form.asked, caller, form.images, form.mask, controls=form.controls
        )
        return await self._respond("image_edit", form.asked, running, http)

    async def _respond(
        self, prefix: str, asked: ImageRequest, running: RunningImages, http: HttpRequest
    ) -> Response:
        """Stream or collect."""
        answer = ImageAnswer(prefix, asked, running.given, running.outputs)
        headers = warning_headers(asked.unknown)
        if asked.stream:
            events = answer.events()
            return NamedEventStream(
                events, self.gateway.options.keep_alive_s, MAX_UNSENT_BYTES, headers
            )
        whole = answer.whole(self.gateway.images, str(http.base_url).rstrip("/"))
        return await whole_answer(http, running.request.id, whole, headers)

    def _check(self, asked: ImageRequest) -> None:
        graph = self.gateway.runtime.graph
        check_model(asked.model, graph.served_names)
        check_draws(graph)
