"""Client secrets: what is asked for, and the answers."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from omnistage.server.common.fields import RequestFields
from omnistage.stage_configs.declared.sampling import Count
from omnistage.stage_configs.json_types import Json

MIN_S, MAX_S, DEFAULT_S = 10, 7200, 600


class ClientSecretAnswer(TypedDict):
    """A key that opens realtime sessions until it expires, and how they begin."""

    value: str
    expires_at: int
    session: Json


class BetaSecretValue(TypedDict):
    """A key of the beta, and when it expires."""

    value: str
    expires_at: int


class BetaSession(TypedDict):
    """A session by the beta's flat fields, with its key."""

    id: str
    object: str
    client_secret: BetaSecretValue


class ExpiresAfter(RequestFields):
    """The time for which a key opens sessions; those that it has opened go on."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[Count, Field(ge=MIN_S, le=MAX_S)] = DEFAULT_S


class ClientSecretRequest(RequestFields):
    """The body of POST /v1/realtime/client_secrets."""

    expires_after: ExpiresAfter | None = None
    session: Json | None = None


class BetaSecret(RequestFields):
    """The beta's place of `expires_after`."""

    expires_after: ExpiresAfter | None = None


class BetaRequest(RequestFields):
    """The body of the beta's two paths: a session's fields, flat."""

    client_secret: BetaSecret | None = None
