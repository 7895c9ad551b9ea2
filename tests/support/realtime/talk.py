"""A session whose turns a test ends by hand."""

from typing import Any

from support.gateway.serving import RunningGateway
from support.realtime.client import Talk

MANUAL = {"audio": {"input": {"turn_detection": None}}}


def error_of(talk: Talk) -> dict[str, Any]:
    return dict(talk.until("error")["error"])


def last_messages(gateway: RunningGateway) -> list[dict[str, Any]]:
    """What the thinker was asked last."""
    body = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)
    return list(body["messages"])
