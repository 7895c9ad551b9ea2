"""POST /v1/responses, and the routes of what is asked of responses by their ids."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.errors import ApiError, fields_named
from omnistage.server.common.fields import warning_headers
from omnistage.server.common.served import adapter_of, check_makes, check_model
from omnistage.server.common.trace import FIRST_IMAGE, FIRST_TEXT, GATEWAY, current_trace
from omnistage.server.endpoints.answers import DeletedResponse, ResponseAnswer, ResponseItems
from omnistage.server.endpoints.examples import response_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.text.kept_responses import KeptResponses
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.request import HttpCaller, JsonRoute
from omnistage.server.http.sse import Event, NamedEventStream, encode_named
from omnistage.server.http.state import state_of
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.responses.answer import ResponseHead
from omnistage.server.responses.drawing import Drawing
from omnistage.server.responses.events import ResponseEvents
from omnistage.server.responses.image_tool import (
    ImageTool,
    check_only_images,
    image_request,
    tool_beside_text,
    unknown_alone,
)
from omnistage.server.responses.items import items_of
from omnistage.server.responses.places import Places
from omnistage.server.responses.resources import resource_of
from omnistage.server.responses.schema import ResponseRequest
from omnistage.server.responses.shorten import turns_to_drop
from omnistage.server.responses.store import ResponseStore, StoredResponse
from omnistage.server.responses.translate import chat_of, messages_of
from omnistage.server.runtime.request import ImageOutput, Outputs
from omnistage.server.tasks.chat.chunks import AnswerChunks, AnswerHead, TextChunks
from omnistage.server.tasks.chat.messages import checked_messages
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import RunningChat, run_chat
from omnistage.server.tasks.image_chat import last_user_prompt
from omnistage.server.tasks.image_task import run_images
from omnistage.server.tasks.images.answer import MAX_UNSENT_BYTES
from omnistage.server.tasks.images.mixed import DRAWN, FIELDS
from omnistage.stage_configs.json_types import Json

PATH = "/v1/responses"
ONE = f"{PATH}/{{response_id}}"
TOO_LONG = "context_length_exceeded"
# The events that a request's timeline has, by its names for them.
FIRSTS = {
    "response.output_text.delta": FIRST_TEXT,
    "response.image_generation_call.partial_image": FIRST_IMAGE,
    "response.image_generation_call.completed": FIRST_IMAGE,
}


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/responses; GET and DELETE of one, its input and its cancel."""
    responses = Responses(gateway)
    kept = KeptResponses(responses.store)
    router = APIRouter(route_class=JsonRoute)
    body = json_examples(response_examples(gateway.runtime.graph))
    about = described("Create a model response", ResponseAnswer, (EVENTS,), body=body)
    router.post(PATH, **about)(responses.create)
    by_id = APIRouter()  # no body, so none is read
    by_id.get(ONE, **described("Retrieve a model response", ResponseAnswer))(kept.get)
    by_id.delete(ONE, **described("Delete a model response", DeletedResponse))(kept.delete)
    about_cancel = described("Cancel a model response (always refused)", ResponseAnswer)
    by_id.post(f"{ONE}/cancel", **about_cancel)(kept.cancel)
    about_items = described("List input items", ResponseItems)
    by_id.get(f"{ONE}/input_items", **about_items)(kept.input_items)
    router.include_router(by_id)
    return router


@dataclass(frozen=True, slots=True)
class Responses:
    """Answers requests for responses as chats are answered."""

    gateway: Gateway
    store: ResponseStore = field(default_factory=ResponseStore)

    async def create(self, asked: ResponseRequest, http: HttpRequest) -> Response:
        """Answer with text, thoughts, calls and images: whole, or as events while they are made."""
        # What was said before may be long though this body is short.
        caller = HttpCaller(http, is_slow=asked.previous_response_id is not None)
        answer = await caller.compute(lambda: self._answer(asked, state_of(http.scope).key))
        with fields_named(answer.places.own):
            chunks, outputs = await self._run(answer, caller)
        headers = warning_headers(answer.unknown)
        events = self._events(answer, chunks, outputs)
        if asked.stream:
            unsent = self.gateway.options.max_unsent_bytes
            if answer.drawing is not None:  # an image is one event
                unsent = max(unsent, MAX_UNSENT_BYTES)
            limits = (self.gateway.options.keep_alive_s, unsent)
            return ResponseStream(answer.made, events, *limits, headers)
        return await whole_answer(http, answer.id, self._collect(answer, events), headers)

    def _answer(self, asked: ResponseRequest, owner: str | None) -> "ResponseRun":
        graph = self.gateway.runtime.graph
        if "image" in graph.outputs and "text" not in graph.outputs:
            return self._images(asked, owner)
        adapters = [lora.name for lora in self.gateway.runtime.fleet.loras]
        check_model(asked.model, graph.served_names, adapters)
        check_makes("text", graph.outputs, "text")
        adapter = adapter_of(asked.model, graph.served_names)
        head = ResponseHead(asked, adapter.get("model", graph.served_name))
        places, before = Places(), self._before(asked, owner)
        has_images = "image" in graph.outputs and "text" in graph.waits_for("image")
        tool = ImageTool.of(asked, places) if has_images else None
        drawn = tool_beside_text(asked, tool)
        fields = None if drawn is None else drawn.fields_beside_text
        chat = chat_of(asked, before, places, has_images, fields)
        drawing = None
        if drawn is not None:
            with fields_named(places.own):
                drawing = Drawing(image_request(asked, drawn, DRAWN, places), is_alone=False)
        unknown = [*asked.unknown, *(tool.unknown(FIELDS) if tool is not None else ())]
        made = ResponseEvents(head)
        return ResponseRun(head.id, chat, drawing, made, places, asked, before, owner, unknown)

    def _images(self, asked: ResponseRequest, owner: str | None) -> "ResponseRun":
        """The answer of a model that makes nothing but images: of the last text of the user."""
        graph = self.gateway.runtime.graph
        check_model(asked.model, graph.served_names)
        check_only_images(asked)
        head, places = ResponseHead(asked, graph.served_name), Places()
        before = self._before(asked, owner)
        with fields_named(places.own):
            tool = ImageTool.of(asked, places)
            messages = messages_of(asked, before, places, has_images=True)
            checked_messages(messages, self.gateway.history)  # all of them are kept
            prompt, media = last_user_prompt(messages)
            images, mask = (media, None) if tool is None else (tool.images(media), tool.mask())
            drawing = Drawing(image_request(asked, tool, prompt, places), True, images, mask)
        made, unknown = ResponseEvents(head), unknown_alone(asked, tool)
        return ResponseRun(head.id, None, drawing, made, places, asked, before, owner, unknown)

    async def _run(self, answer: "ResponseRun", caller: HttpCaller) -> tuple[AnswerChunks, Outputs]:
        """Send it to the stages; what makes chunks of their outputs, and these."""
        if answer.chat is not None:
            is_cut = answer.asked.truncation == "auto"
            first = caller.attempt() if is_cut else caller
            chat = await run_chat(self.gateway, answer.chat, first, answer.id)
            outputs = self._what_fits(answer, chat, caller, first) if is_cut else chat.outputs
            return chat.chunks(), outputs
        drawing = answer.drawing
        assert drawing is not None
        given = (drawing.images, drawing.mask)
        images = await run_images(self.gateway, drawing.asked, caller, *given, answer.id)
        drawing.given = images.given.sizes
        return TextChunks(AnswerHead(answer.id, "")), images.outputs

    async def _what_fits(
        self, answer: "ResponseRun", running: RunningChat, caller: HttpCaller, attempt: HttpCaller
    ) -> Outputs:
        """Yield a chat's outputs; if it is too long, those of it without its oldest turns."""
        has_begun = False
        while True:
            chat = running.chat
            try:
                async with aclosing(running.outputs) as outputs:
                    async for output in outputs:
                        has_begun = True
                        yield output
                return
            except ApiError as error:
                if has_begun or error.code != TOO_LONG:
                    raise
                dropped = await caller.compute(partial(turns_to_drop, chat.messages))
                if not dropped:
                    raise
            attempt.until.close()
            attempt = caller.attempt()
            answer.places.leave_out(dropped)
            kept = [*chat.messages[: dropped.start], *chat.messages[dropped.stop :]]
            shorter = chat.model_copy(update={"messages": kept})
            running = await run_chat(self.gateway, shorter, attempt, answer.id)

    def _before(self, asked: ResponseRequest, owner: str | None) -> Sequence[Json]:
        """The conversation that this response goes on with."""
        previous = asked.previous_response_id
        if previous is None:
            return ()
        try:
            return self.store.get(previous, owner).conversation
        except ApiError as error:
            raise ApiError(
                400,
                error.message,
                param="previous_response_id",
                code="previous_response_not_found",
            ) from error

    async def _events(
        self, answer: "ResponseRun", chunks: AnswerChunks, outputs: Outputs
    ) -> AsyncGenerator[Event, None]:
        """The first event waits for the stages, so that a refusal of theirs is still one."""
        timeline = current_trace().timeline
        made, drawing = answer.made, answer.drawing
        with fields_named(answer.places.own):
            async with aclosing(outputs):
                async for output in outputs:
                    for begun in () if made.has_begun else made.begin():
                        yield begun
                    if isinstance(output, ImageOutput) and drawing is not None:
                        events = await drawing.add(output, made)
                    else:
                        events = [
                            one for chunk in chunks.chunks_of(output) for one in made.add(chunk)
                        ]
                    for event in events:
                        yield event
                        if event["type"] in FIRSTS:
                            timeline.mark(GATEWAY, FIRSTS[event["type"]])
        for chunk in chunks.finish():
            made.add(chunk if drawing is None else drawing.counted(chunk))
        events = made.finish()
        if answer.asked.is_kept:
            stored = await asyncio.to_thread(answer.stored)  # what it goes on with may be long
            self.store.put(answer.id, stored)
        for event in events:
            yield event

    async def _collect(self, answer: "ResponseRun", events: AsyncGenerator[Event, None]) -> Json:
        async with aclosing(events):
            async for _ in events:
                continue
        return answer.made.response


@dataclass(frozen=True, slots=True)
class ResponseRun:
    """One request on its way to its response, and what is kept of it."""

    id: str
    chat: ChatRequest | None  # none if nothing but an image is made
    drawing: Drawing | None
    made: ResponseEvents
    places: Places
    asked: ResponseRequest
    before: Sequence[Json]
    owner: str | None
    unknown: Sequence[str]  # fields without effect

    def stored(self) -> StoredResponse:
        """Returns what is kept of it."""
        own = [resource_of(item) for item in items_of(self.asked.input)]
        return StoredResponse.of(self.owner, self.made.response, [*self.before, *own])


class ResponseStream(NamedEventStream):
    """The events of a response; a failure after the first is one of them too."""

    def __init__(
        self,
        made: ResponseEvents,
        events: AsyncGenerator[Event, None],
        keep_alive_s: float | None,
        max_unsent_bytes: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(events, keep_alive_s, max_unsent_bytes, headers)
        self._made = made

    def _ending(self, failure: ApiError | None) -> bytes | None:
        events = [] if failure is None else self._made.fail(failure)
        return b"".join(encode_named(event["type"], event) for event in events)
