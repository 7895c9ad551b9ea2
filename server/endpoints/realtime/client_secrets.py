"""POST /v1/realtime/client_secrets and the beta's two paths: keys that open sessions alone."""

from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.examples import beta_examples, secret_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.realtime.client_secret_fields import (
    DEFAULT_S,
    BetaRequest,
    BetaSession,
    ClientSecretAnswer,
    ClientSecretRequest,
    ExpiresAfter,
)
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.protocol.socket_protocol import REALTIME
from omnistage.server.http.request import JsonRoute
from omnistage.server.http.state import state_of
from omnistage.server.realtime.beta import beta_session, without_flat
from omnistage.server.realtime.chat_flow import ChatFlow
from omnistage.server.realtime.events import new_id
from omnistage.server.realtime.settings import Settings, session_object
from omnistage.server.realtime.starting import Kind, check_settings, default_settings
from omnistage.server.realtime.updates import updated
from omnistage.stage_configs.json_types import Json, JsonMap

BETA_S = 60  # of the beta's sessions, which have no field for it


def routes(gateway: Gateway) -> APIRouter:
    """The three POSTs."""
    router = APIRouter(route_class=JsonRoute)
    secrets, graph = ClientSecrets(gateway), gateway.runtime.graph
    body = json_examples(secret_examples(graph))
    about = described("Create a client secret", ClientSecretAnswer, body=body)
    router.post(f"{REALTIME}/client_secrets", **about)(secrets.create)
    body = json_examples(beta_examples(graph))
    about = described("Create a session's client secret, by the beta", BetaSession, body=body)
    router.post(f"{REALTIME}/sessions", **about)(secrets.create_session)
    about = described("Create a transcription's client secret, by the beta", BetaSession, body=body)
    router.post(f"{REALTIME}/transcription_sessions", **about)(secrets.create_transcription)
    return router


@dataclass(frozen=True, slots=True)
class ClientSecrets:
    """Makes keys for the sessions of one server."""

    gateway: Gateway

    async def create(self, asked: ClientSecretRequest, http: HttpRequest) -> Response:
        """A key for sessions that begin with these settings."""
        expires_after = asked.expires_after or ExpiresAfter()
        settings = self._settings(asked.session or {}, "realtime", http, "session")
        value, expires_at = self._key(settings, expires_after.seconds, http)
        made = {"value": value, "expires_at": expires_at, "session": self._object(settings)}
        return JSONResponse(made, headers=warning_headers(asked.unknown))

    async def create_session(self, asked: BetaRequest, http: HttpRequest) -> Response:
        """A key for sessions that begin with the beta's flat fields."""
        return self._beta(asked, "realtime", BETA_S, http)

    async def create_transcription(self, asked: BetaRequest, http: HttpRequest) -> Response:
        """A key for sessions that transcribe alone."""
        return self._beta(asked, "transcription", DEFAULT_S, http)

    def _beta(self, asked: BetaRequest, kind: Kind, seconds: int, http: HttpRequest) -> Response:
        chosen = None if asked.client_secret is None else asked.client_secret.expires_after
        settings = self._settings({**(asked.model_extra or {}), "type": kind}, kind, http, "")
        value, expires_at = self._key(settings, chosen.seconds if chosen else seconds, http)
        session = beta_session(self._object(settings))
        session["client_secret"] = {"value": value, "expires_at": expires_at}
        return JSONResponse(session)

    def _settings(self, given: JsonMap, kind: Kind, http: HttpRequest, place: str) -> Settings:
        """Return the settings of a body; raises ApiError for those that cannot be."""
        settings = updated(default_settings(self.gateway.runtime, kind), without_flat(given), place)
        check_settings(ChatFlow(self.gateway, http.app.state.body_threads), settings)
        return settings

    def _key(self, settings: Settings, seconds: int, http: HttpRequest) -> tuple[str, int]:
        num_bytes = len(settings.model_dump_json())
        owner = state_of(http.scope).key
        return self.gateway.client_secrets.make(owner, settings, num_bytes, seconds)

    def _object(self, settings: Settings) -> Json:
        """Return the session as it will be told; it has not begun, so it does not expire yet."""
        model = getattr(settings, "model", None) or self.gateway.runtime.graph.served_name
        return session_object(settings, new_id("sess"), model, expires_at=0)
