"""POST /v1/realtime/calls: sessions by WebRTC, as browsers open them; and their end."""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.errors import ApiError, fields_named, invalid
from omnistage.server.common.json_text import check_values
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.form_body import read_fields
from omnistage.server.http.openapi import described, errors
from omnistage.server.http.protocol.socket_protocol import CALLS, REALTIME
from omnistage.server.http.state import state_of
from omnistage.server.realtime.webrtc.calls import WebRtcCalls
from omnistage.stage_configs.json_types import Json

SDP = "application/sdp"
MAX_OFFER = 64 << 10
MAX_SESSION = 512 << 10  # bytes of JSON
BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["sdp"],
                "properties": {"sdp": {"type": "string"}, "session": {"type": "object"}},
            }
        },
        SDP: {"schema": {"type": "string"}},
    },
}


def routes(gateway: Gateway) -> APIRouter:
    """The offer of a call, and its end."""
    router = APIRouter()
    calls = CallRequests(gateway, WebRtcCalls(gateway.options.calls))
    about = described("Create a call", also=(SDP,), more=errors(501), body=BODY)
    about["responses"][201] = about["responses"].pop(200)
    router.post(CALLS, status_code=201, **about)(calls.create)
    router.post(f"{CALLS}/{{call_id}}/hangup", **described("Hang up a call"))(calls.hang_up)
    return router


@dataclass(frozen=True, slots=True)
class CallRequests:
    """Calls of one server, each a client of its own sessions."""

    gateway: Gateway
    _calls: WebRtcCalls

    async def create(self, http: HttpRequest) -> Response:
        """Answer an offer; the session begins with the settings that came beside it."""
        offer, session = await _offer_of(http)
        model = http.query_params.get("model") or (session or {}).get("model")
        query = {} if model is None else {"model": model}
        if session is not None and session.get("type") == "transcription":
            query = {"intent": "transcription"}
        headers = {}
        if "authorization" in http.headers:
            headers["authorization"] = http.headers["authorization"]
        url = f"{_origin(http)}{REALTIME}?{urlencode(query)}"
        owner = state_of(http.scope).key
        call_id, answer = await self._calls.open(offer, url, headers, session, owner)
        location = {"location": f"{CALLS}/{call_id}"}
        return Response(answer, 201, media_type=SDP, headers=location)

    async def hang_up(self, call_id: str, http: HttpRequest) -> Response:
        """End a call of the same key."""
        self._calls.hang_up(call_id, state_of(http.scope).key)
        return Response()


async def _offer_of(http: HttpRequest) -> tuple[str, Json | None]:
    """Return the offer of a body, and the settings beside it; raises ApiError."""
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() == SDP:
        return _checked((await http.body()).decode(errors="replace")), None
    fields = await read_fields(http)
    session = fields.get("session")
    if isinstance(session, str):
        session = _parsed(session)
    if session is not None and not isinstance(session, dict):
        raise invalid("session", "must be an object")
    size = len(json.dumps(session))
    if size > MAX_SESSION:
        raise invalid("session", f"has {size} bytes; at most {MAX_SESSION}")
    model = (session or {}).get("model")
    if model is not None and not isinstance(model, str):
        raise invalid("session.model", "must be a string")
    return _checked(fields.get("sdp")), session


def _parsed(session: str) -> Any:
    """Return the settings that a form has as JSON; raises ApiError."""
    try:
        parsed = json.loads(session)
    except (ValueError, RecursionError):
        raise invalid("session", "must be JSON") from None
    with fields_named("session.{}".format):
        check_values(parsed)
    return parsed


def _checked(offer: Any) -> str:
    if not isinstance(offer, str) or not offer.startswith("v=0"):
        raise invalid("sdp", "must be an offer in SDP, which begins with v=0")
    if len(offer) > MAX_OFFER:
        raise invalid("sdp", f"has {len(offer)} characters; at most {MAX_OFFER}")
    return offer


def _origin(http: HttpRequest) -> str:
    """Return this very server as a client of it calls it; raises ApiError without a port."""
    host, port = http.scope.get("server") or ("", None)
    if port is None:
        message = "Calls need a server with a TCP port."
        raise ApiError(501, message, code="webrtc_needs_port")
    scheme = "wss" if http.scope["scheme"] == "https" else "ws"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
