"""Responses by their ids: GET, DELETE, the cancel, the input."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from fastapi import Query, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.http.state import state_of
from omnistage.server.responses.store import ResponseStore
from omnistage.stage_configs.json_types import Json, JsonMap


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

    async def delete(self, response_id: str, http: HttpRequest) -> JsonMap:
        """Forget it."""
        self.store.delete(response_id, state_of(http.scope).key)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, response_id: str, http: HttpRequest) -> JsonMap:
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
    ) -> Response:
        """The items, those of earlier responses included, the last first."""
        stored = self.store.get(response_id, state_of(http.scope).key)

        def page() -> bytes:
            items = stored.input_items if order == "asc" else stored.input_items[::-1]
            return page_of(items, limit, after)

        # A conversation may be long, or have images.
        return Response(await asyncio.to_thread(page), media_type="application/json")


def page_of(items: Sequence[Json], limit: int, after: str | None) -> bytes:
    """Return a page of items as JSON; raises ApiError."""
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise invalid("after", "is the id of no item")
    start = 0 if after is None else ids.index(after) + 1
    page = ids[start : start + limit]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": items[start : start + limit],
            "has_more": start + limit < len(items),
            "first_id": page[0] if page else "",
            "last_id": page[-1] if page else "",
        }
    )
