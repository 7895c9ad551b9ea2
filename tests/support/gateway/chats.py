"""Chats that tests send to a gateway over fake stages."""

import itertools
from typing import Any

from support.api.bodies import chat_request
from support.gateway.serving import MODEL, RunningGateway
from support.waiting import wait_until

from omnistage.server.runtime.request import GraphRequest

URL = "/v1/chat/completions"
TEXT = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}
NUMBERS = itertools.count()


def spoken(script: str, **more: Any) -> dict[str, Any]:
    """A chat that wants text and audio; the script says what the stages do."""
    audio = {"voice": "ethan", "format": "pcm16"}
    messages = [{"role": "user", "content": script}]
    wanted = {"modalities": ["text", "audio"], "audio": audio}
    return {"model": MODEL, "messages": messages, **wanted, **more}


def request_of(script: str, *outputs: str) -> GraphRequest:
    """A chat as it enters the graph, with an id of its own."""
    body = {"messages": [{"role": "user", "content": script}]}
    return chat_request(f"{script}-{next(NUMBERS)}", outputs, body)


def settle(gateway: RunningGateway) -> None:
    """Return once no stage has a request, long before a deadline would end one."""
    wait_until(lambda: not gateway.stages.running)
