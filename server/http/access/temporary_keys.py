"""Keys that the server makes for a while, each with what it is for."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.datastructures import Headers

from omnistage.server.common.errors import ApiError
from omnistage.server.http.access.bearer import bearer_of, digest_of, unauthorized

PREFIX = "ek_"  # as OpenAI calls them
KEY_BYTES = 32
MAX_KEYS = 10_000
MAX_BYTES = 64 << 20  # of what the keys are for

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TemporaryKey(Generic[T]):
    """A key's maker, what it is for, and the second until which it is valid."""

    owner: str | None
    holds: T
    num_bytes: int
    expires_at: int


class TemporaryKeys(Generic[T]):
    """The temporary keys of one server, kept as digests."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._keys: dict[bytes, TemporaryKey[T]] = {}

    def make(self, owner: str | None, holds: T, num_bytes: int, seconds: int) -> tuple[str, int]:
        """Make a key; returns it and when it expires. ApiError if there are too many.

        `num_bytes`: about what it takes.
        """
        now = self._now()
        self._keys = {name: key for name, key in self._keys.items() if key.expires_at > now}
        taken = num_bytes + sum(key.num_bytes for key in self._keys.values())
        if len(self._keys) >= MAX_KEYS or taken > MAX_BYTES:
            message = "The server has too many client secrets that have not expired."
            raise ApiError(429, message, code="too_many_client_secrets", retry_after_s=10)
        value, expires_at = PREFIX + secrets.token_hex(KEY_BYTES), int(now) + seconds
        self._keys[digest_of(value)] = TemporaryKey(owner, holds, num_bytes, expires_at)
        return value, expires_at

    def find(self, headers: Headers) -> TemporaryKey[T] | None:
        """Return the temporary key of a request, None if it has none; ApiError if it is invalid."""
        value = bearer_of(headers)
        if value is None or not value.startswith(PREFIX):
            return None
        found = self._keys.get(digest_of(value))
        if found is None or found.expires_at <= self._now():
            raise unauthorized("The client secret is unknown, or has expired.")
        return found
