"""The key that a request has: a header's, or for pages a subprotocol's."""

import hashlib

from starlette.datastructures import Headers

from omnistage.server.common.errors import ApiError

KEY_PROTOCOL = "openai-insecure-api-key."  # as OpenAI calls it


def bearer_of(headers: Headers) -> str | None:
    """Return the key of a request, None if it has none.

    A page, which cannot set the header, offers the key as a WebSocket's protocol.
    """
    given = headers.get("authorization")
    if given is not None:
        scheme, _, key = given.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else None
    offered = headers.get("sec-websocket-protocol", "").split(",")
    keys = [one.strip() for one in offered if one.strip().startswith(KEY_PROTOCOL)]
    return keys[0].removeprefix(KEY_PROTOCOL) if keys else None


def digest_of(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def unauthorized(message: str) -> ApiError:
    """Return the refusal of a request without a valid key."""
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
