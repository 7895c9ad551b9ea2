"""The key of an operator who looks requests up."""

import httpx
from support.gateway.serving import RunningGateway

ADMIN = {"Authorization": "Bearer sk-admin"}


def admin(gateway: RunningGateway, name: str = "") -> httpx.Response:
    return httpx.get(f"{gateway.url}/admin/traces{name}", headers=ADMIN)
