"""POST /v1/responses, and what is asked of responses by their ids."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi import Request as HttpRequest

from omnistage.server.chat.schema import ChatRequest
from omnistage.server.endpoints.answers import DeletedResponse, ResponseAnswer, ResponseItems
from omnistage.server.endpoints.examples import response_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.errors import ApiError, fields_named, invalid, unsupported
from omnistage.server.http.caller import HttpCaller
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import EVENTS, described, json_examples
from omnistage.server.http.served import adapter_of, check_makes, check_model
from omnistage.server.http.sse import Event, NamedEventStream, encode_named
from omnistage.server.http.state import state_of
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.responses.answer import Json, ResponseHead
from omnistage.server.responses.events import ResponseEvents
from omnistage.server.responses.items import items_of
from omnistage.server.responses.places import Places
from omnistage.server.responses.resources import resource_of
from omnistage.server.responses.schema import ResponseRequest
from omnistage.server.responses.store import ResponseStore, StoredResponse
from omnistage.server.responses.translate import chat_of
from omnistage.server.tasks.chat import RunningChat, run_chat
from omnistage.server.trace import FIRST_TEXT, GATEWAY, current_trace

PATH = "/v1/responses"
ONE = f"{PATH}/{{response_id}}"


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
        """Answer with text, thoughts and calls: whole, or as events while they are made."""
        # What was said before may be long though this body is short.
        caller = HttpCaller(http, is_slow=asked.previous_response_id is not None)
        answer = await caller.compute(lambda: self._answer(asked, state_of(http.scope).key))
        with fields_named(answer.places.own):
            running = await run_chat(self.gateway, answer.chat, caller, answer.id)
        headers = warning_headers(asked.unknown)
        if asked.stream:
            limits = (self.gateway.keep_alive_s, self.gateway.max_unsent_bytes)
            return ResponseStream(answer.made, self._events(answer, running), *limits, headers)
        making = self._collect(answer, running)
        return await whole_answer(http, running.request.id, making, headers)

    def _answer(self, asked: ResponseRequest, owner: str | None) -> "Answer":
        graph = self.gateway.runtime.graph
        adapters = [lora.name for lora in self.gateway.runtime.fleet.loras]
        check_model(asked.model, graph.served_names, adapters)
        check_makes("text", graph.outputs, "text")
        adapter = adapter_of(asked.model, graph.served_names)
        model = adapter.get("model", graph.served_name)
        head, places = ResponseHead(asked, model), Places()
        before = self._before(asked, owner)
        chat = chat_of(asked, before, places)
        return Answer(head.id, chat, ResponseEvents(head), places, asked, before, owner)

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

    async def _events(self, answer: "Answer", running: RunningChat) -> AsyncGenerator[Event, None]:
        """The first event waits for the stages, so that a refusal of theirs is still one."""
        timeline = current_trace().timeline
        made, chunks = answer.made, running.chunks()
        with fields_named(answer.places.own):
            async with aclosing(running.outputs) as outputs:
                async for output in outputs:
                    for event in () if made.has_begun else made.begin():
                        yield event
                    for chunk in chunks.chunks_of(output):
                        for event in made.add(chunk):
                            yield event
                            if event["type"] == "response.output_text.delta":
                                timeline.mark(GATEWAY, FIRST_TEXT)
        for chunk in chunks.finish():
            made.add(chunk)
        events = made.finish()
        if answer.asked.is_kept:
            stored = await asyncio.to_thread(answer.stored)  # what it goes on with may be long
            self.store.put(running.request.id, stored)
        for event in events:
            yield event

    async def _collect(self, answer: "Answer", running: RunningChat) -> Json:
        async with aclosing(self._events(answer, running)) as events:
            async for _ in events:
                continue
        return answer.made.response


@dataclass(frozen=True, slots=True)
class Answer:
    """One request on its way to its response, and what is kept of it."""

    id: str
    chat: ChatRequest
    made: ResponseEvents
    places: Places
    asked: ResponseRequest
    before: Sequence[Json]
    owner: str | None

    def stored(self) -> StoredResponse:
        """What is kept of it."""
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


@dataclass(frozen=True, slots=True)
class KeptResponses:
    """Tells of responses that are kept."""

    store: ResponseStore

    async def get(
        self,
        response_id: str,
        http: HttpRequest,
        stream: bool = False,
        starting_after: int | None = None,
    ) -> Response:
        """The response as it was answered; its events are not kept."""
        if stream or starting_after is not None:
            raise unsupported("stream" if stream else "starting_after")
        stored = self.store.get(response_id, state_of(http.scope).key)
        return Response(stored.response, media_type="application/json")

    async def delete(self, response_id: str, http: HttpRequest) -> Mapping[str, Any]:
        """Forget it."""
        self.store.delete(response_id, state_of(http.scope).key)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, response_id: str, http: HttpRequest) -> Mapping[str, Any]:
        """Only one in the background could be cancelled so; others end with their connection."""
        self.store.get(response_id, state_of(http.scope).key)
        raise invalid("response_id", "names no response in the background: it has ended")

    async def input_items(
        self,
        response_id: str,
        http: HttpRequest,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Mapping[str, Any]:
        """The items, those of earlier responses included, the last first."""
        items = self.store.get(response_id, state_of(http.scope).key).input_items
        items = items if order == "asc" else items[::-1]
        ids = [item["id"] for item in items]
        if after is not None and after not in ids:
            raise invalid("after", "is the id of no item")
        start = 0 if after is None else ids.index(after) + 1
        page = items[start : start + limit]
        return {
            "object": "list",
            "data": page,
            "has_more": start + limit < len(items),
            "first_id": page[0]["id"] if page else "",
            "last_id": page[-1]["id"] if page else "",
        }
