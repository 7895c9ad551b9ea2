"""POST /v1/images/generations and /v1/images/edits."""

from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.common.served import check_model
from omnistage.server.endpoints.examples import edit_examples, image_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.images.image_answers import ImagesAnswer
from omnistage.server.endpoints.images.image_form import (
    EDITS,
    ImageForm,
    edit_body,
    generation_body,
)
from omnistage.server.http.openapi import EVENTS, described
from omnistage.server.http.request import HttpCaller
from omnistage.server.http.sse import NamedEventStream
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.tasks.image_task import RunningImages, check_draws, run_images
from omnistage.server.tasks.images.answer import MAX_UNSENT_BYTES, ImageAnswer
from omnistage.server.tasks.images.schema import EditRequest, GenerationRequest, ImageRequest


def routes(gateway: Gateway) -> APIRouter:
    """POST of both; FastAPI does not read their bodies, so the schemas are given."""
    router = APIRouter()
    images, graph = Images(gateway), gateway.runtime.graph
    body = generation_body(image_examples(graph))
    about = described("Create an image", ImagesAnswer, (EVENTS,), body=body)
    router.post("/v1/images/generations", **about)(images.generate)
    body = edit_body(edit_examples(graph))
    about = described("Create an image edit", ImagesAnswer, (EVENTS,), body=body)
    router.post(EDITS, **about)(images.edit)
    return router


@dataclass(frozen=True, slots=True)
class Images:
    """Answers image requests by running them through the graph."""

    gateway: Gateway

    async def generate(self, http: HttpRequest) -> Response:
        """Make images of words: whole, or as events with previews."""
        form = await ImageForm.read(http, GenerationRequest)
        return await self.answer("image_generation", form, http)

    async def edit(self, http: HttpRequest) -> Response:
        """Make images of images and words: whole, or as events with previews."""
        form = await ImageForm.read(http, EditRequest)
        return await self.answer("image_edit", form, http)

    async def answer(
        self, prefix: str, form: ImageForm[ImageRequest], http: HttpRequest
    ) -> Response:
        """Answer a request whose body was read; `prefix`: of the names of its events."""
        graph = self.gateway.runtime.graph
        check_model(form.asked.model, graph.served_names)
        check_draws(graph)
        running = await run_images(
            self.gateway,
            form.asked,
            HttpCaller(http),
            form.images,
            form.mask,
            controls=form.controls,
        )
        return await self._respond(prefix, form.asked, running, http)

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
