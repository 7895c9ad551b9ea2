"""Responses that can be asked for by their ids: the last ones, for an hour, in bounded memory."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from omnistage.server.common.errors import ApiError
from omnistage.stage_configs.json_types import Json

LIFETIME_S = 3600
MAX_BYTES = 64 << 20
OVERHEAD_BYTES = 1024  # of a response beside its JSON: the id, the entry


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response as JSON: itself, and all items that its model read."""

    owner: str | None  # the name of the key that asked for it
    response: bytes
    items: bytes
    expires_at: float

    @classmethod
    def of(cls, owner: str | None, response: Json, items: Sequence[Json]) -> "StoredResponse":
        """Make it; what it is made of may change afterwards."""
        encode = msgspec.json.encode
        return cls(owner, encode(response), encode(list(items)), time.time() + LIFETIME_S)

    @property
    def num_bytes(self) -> int:
        """Returns what it counts against the bound."""
        return OVERHEAD_BYTES + len(self.response) + len(self.items)

    @property
    def input_items(self) -> list[Json]:
        """Returns what the model read, in order."""
        items: list[Json] = msgspec.json.decode(self.items)
        return items

    @property
    def conversation(self) -> list[Json]:
        """Returns what the model read and what it answered."""
        response: Json = msgspec.json.decode(self.response)
        return [*self.input_items, *response["output"]]


class ResponseStore:
    """The last responses of this server; each key sees its own alone, and the oldest go first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def put(self, response_id: str, stored: StoredResponse) -> None:
        """Keep one under a new id, unless it is larger than all may be; what has expired goes."""
        if stored.num_bytes > self._max_bytes:
            return
        self._stored[response_id] = stored
        self._num_bytes += stored.num_bytes
        while self._stored and (self._num_bytes > self._max_bytes or self._is_oldest_expired()):
            self._remove(next(iter(self._stored)))

    def get(self, response_id: str, owner: str | None) -> StoredResponse:
        """One of this owner; ApiError if there is none."""
        stored = self._stored.get(response_id)
        if stored is None or stored.owner != owner or stored.expires_at <= time.time():
            message = f"No response with the id {response_id!r} is kept, or it has expired."
            raise ApiError(404, message, param="response_id", code="response_not_found")
        return stored

    def delete(self, response_id: str, owner: str | None) -> None:
        """Forget one of this owner; ApiError if there is none."""
        self.get(response_id, owner)
        self._remove(response_id)

    def _remove(self, response_id: str) -> None:
        self._num_bytes -= self._stored.pop(response_id).num_bytes

    def _is_oldest_expired(self) -> bool:
        return next(iter(self._stored.values())).expires_at <= time.time()
