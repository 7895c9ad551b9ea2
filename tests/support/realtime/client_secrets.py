"""Client secrets, and sessions that they open."""

from typing import Any

import httpx
from support.gateway.serving import RunningGateway
from support.realtime.client import talking

Json = dict[str, Any]
KEY = "sk-ann"
SECRETS = "/v1/realtime/client_secrets"
BETA = ("/v1/realtime/sessions", "/v1/realtime/transcription_sessions")


def posted(gateway: RunningGateway, path: str = SECRETS, key: str = KEY, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(gateway.url + path, json=body, headers=headers)


def opened(gateway: RunningGateway, key: str, query: str = "") -> Any:
    return talking(gateway, query, additional_headers={"Authorization": f"Bearer {key}"})
