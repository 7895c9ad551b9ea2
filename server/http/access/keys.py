"""API keys: who may ask, and the 401 for everybody else."""

import hmac
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omnistage.server.common.errors import ApiError
from omnistage.server.http.access.bearer import bearer_of, digest_of, unauthorized
from omnistage.server.http.access.temporary_keys import PREFIX, TemporaryKey, TemporaryKeys
from omnistage.server.http.refusal import refuse
from omnistage.server.http.state import state_of

COMMENT = "#"
GUARDED = "/v1"
# vLLM's, which are guarded as if they were below it.
BESIDE_V1 = ("/tokenize", "/detokenize", "/invocations")
FILES = f"{GUARDED}/images/files/"  # below it are ids that nobody can guess
OPEN = f"{GUARDED}/audio/voices"  # read without a key by those that speak with one
READING = ("GET", "HEAD")

# vLLM's, whose place is not below ADMIN; a key of the API is not enough for them.
LOAD_LORA, UNLOAD_LORA = f"{GUARDED}/load_lora_adapter", f"{GUARDED}/unload_lora_adapter"
ADMIN = "/admin"


class Keys:
    """A set of keys, kept as digests; an empty one lets everybody in.

    Raises ValueError for a key that no header can carry.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple({digest_of(_checked(key)) for key in keys})

    @classmethod
    def read(cls, given: Sequence[str], file: Path | None) -> Self:
        """Keys given one by one and those of a file, one a line; ValueError, OSError."""
        from_file = [] if file is None else lines_of(file)
        if file is not None and not from_file:
            raise ValueError(f"{file} has no key in it")
        return cls([*given, *from_file])

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, headers: Headers) -> str | None:
        """A name for the key that a request has, the same each time; ApiError if it has none.

        Every key is compared, each in constant time.
        """
        if not self._digests:
            return None
        key = bearer_of(headers)
        given = digest_of(key or "")
        is_known = [hmac.compare_digest(given, digest) for digest in self._digests]
        if key is None:
            raise unauthorized(
                "No API key provided; send it as the header Authorization: Bearer KEY."
            )
        if not any(is_known):
            raise unauthorized("Incorrect API key provided.")
        return given.hex()[:16]


NO_KEYS = Keys()


class KeyGuard:
    """ASGI middleware: to what is guarded below `prefix` only requests with a key get through.

    The key's name is then in the request's state; a temporary key, which opens some paths alone,
    has its maker's.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        prefix: str = GUARDED,
        temporary: TemporaryKeys[Any] | None = None,
        opened: Collection[str] = (),
    ) -> None:
        self._app = app
        self._keys = keys
        self._prefix = prefix
        self._temporary = temporary
        self._opened = opened  # by temporary keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] in ("http", "websocket"):
            method = scope.get("method", "GET")
            try:
                if is_guarded(scope["path"], self._prefix, method):
                    state_of(scope).key = self._owner(scope)
                elif self._prefix == GUARDED and scope["path"] == OPEN:
                    state_of(scope).key = self._owner_if_any(scope)
            except ApiError as error:
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _owner(self, scope: Scope) -> str | None:
        """Return the owner of the key that a request has; ApiError if it has none."""
        headers = Headers(scope=scope)
        if self._temporary is not None and scope["path"] in self._opened:
            found: TemporaryKey[object] | None = self._temporary.find(headers)
            if found is not None:
                return found.owner
        return self._keys.owner(headers)

    def _owner_if_any(self, scope: Scope) -> str | None:
        """Returns the owner of the key if there is one: requests that need no key tell its owner
        more.
        """
        with suppress(ApiError):
            return self._keys.owner(Headers(scope=scope))
        return None


def is_guarded(path: str, prefix: str = GUARDED, method: str = "GET") -> bool:
    """Returns whether a path wants a key."""
    if (path == OPEN and method in READING) or path.startswith(FILES):
        return False
    if path in (LOAD_LORA, UNLOAD_LORA):
        return prefix == ADMIN
    if prefix == GUARDED and path in BESIDE_V1:
        return True
    return path == prefix or path.startswith(f"{prefix}/")


def lines_of(file: Path) -> list[str]:
    """Returns the keys in a file: one per line, without comments; OSError."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith(COMMENT)]


def _checked(key: str) -> str:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("an API key must be printable ASCII without spaces")
    if key.startswith(PREFIX):
        raise ValueError(f"an API key must not begin with {PREFIX}: such are client secrets")
    return key
