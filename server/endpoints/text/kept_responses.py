"""Responses by their ids: GET, DELETE, the cancel, the input."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.http.state import state_of
from omnistage.server.responses.store import ResponseStore
from omnistage.stage_configs.json_types import JsonMap


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
    ) -> JsonMap:
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
