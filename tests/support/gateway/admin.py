"""A gateway with an admin key, its chats and its commands."""

from collections.abc import Mapping
from typing import Any

import httpx
from support.gateway.serving import MODEL, RunningGateway
from support.waiting import wait_until

from omnistage.stages.messages.to_gateway import Lora

CHAT = "/v1/chat/completions"
KEY = {"authorization": "Bearer sk-admin"}


def chat(script: str = "words", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": script}], **more}


class Guarded:
    """A gateway with an admin key, and a client that has it."""

    def __init__(self, gateway: RunningGateway, client: httpx.Client) -> None:
        self.gateway = gateway
        self.client = client
        self.told: list[tuple[str, str, Mapping[str, Any]]] = []
        stages = gateway.stages
        default = stages.obey

        def obey(stage: str, command: str, arguments: Mapping[str, Any]) -> Any:
            self.told.append((stage, command, arguments))
            return default(stage, command, arguments)

        stages.obey = obey

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self.client.post(f"/admin/{path}", json=body)

    def ready_again(self, loras: list[Lora] | None = None, /, **commands: str) -> None:
        """The thinker takes these commands only, and has these adapters as models."""

        def become_ready() -> None:
            self.gateway.stages.commands = commands
            self.gateway.stages.loras = loras
            self.gateway.stages.stages["thinker"].become_ready()

        self.gateway.do(become_ready)

    def all_ready_again(self, **commands: str) -> None:
        """All stages take these commands only."""

        def become_ready() -> None:
            self.gateway.stages.commands = commands
            for stage in self.gateway.stages.stages.values():
                stage.become_ready()

        self.gateway.do(become_ready)


def until_awake(admin: Guarded) -> None:
    def thinker() -> Any:
        return admin.client.get("/health").json()["stages"]["thinker"]

    wait_until(lambda: thinker()["state"] == "ready")
    assert thinker()["asleep"] == []
