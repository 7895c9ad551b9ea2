"""The gateway of a stage worker: what it sends to one, and hears of it."""

from pathlib import Path
from typing import Any

from support.repository.metrics_docs import families_in

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.families import page
from omnistage.stages.messages.to_gateway import (
    TO_GATEWAY,
    Marks,
    Metrics,
    Status,
    ToGateway,
)
from omnistage.stages.messages.to_stage import (
    Cancel,
    Request,
    Stop,
)

COMMAND_S = 60.0
OWN_FEED = "one.one.feed"
EDGE = ("one.two.open", "one.two.feed", "one.two.rows")
ALONE: dict[str, Any] = {"stages": {"one": {"kind": "vllm.text"}}, "outputs": {"text": "one"}}


class Gateway:
    """The other ends of a worker's channels."""

    def __init__(self, directory: Path) -> None:
        connector = make_connector("shm", directory, {})
        for address in ("gateway.one", "one.gateway", *EDGE):
            connector.create(address)
        make_connector("shm", directory, {"credit": 0}).create(OWN_FEED)
        self.requests = connector.sender("gateway.one")
        self.outputs = connector.receiver("one.gateway", TO_GATEWAY)
        self.got: list[Chunk[ToGateway]] = []
        self.unread: set[str] = set()  # requests whose client reads nothing

    def send(self, request_id: str, message: Cancel | Stop | str) -> None:
        """A message, or a request with this script."""
        if isinstance(message, str):
            self.requests.send(Chunk(request_id, Request(Chat({"script": message}), ["text"])))
        else:
            self.requests.send(Chunk(request_id, message, last=True))

    def look(self) -> None:
        while (chunk := self.outputs.receive()) is not None:
            if chunk.request_id not in self.unread or isinstance(chunk.message, Marks):
                self.outputs.grant(chunk.request_id)
            self.got.append(chunk)

    def of(self, request_id: str) -> list[Chunk[ToGateway]]:
        """What has come of a request, but for its stamps."""
        self.look()
        return [
            chunk
            for chunk in self.got
            if chunk.request_id == request_id and not isinstance(chunk.message, Marks)
        ]

    def stamps(self, request_id: str) -> list[tuple[int, list[str]]]:
        """The events of each message with stamps, and its place among all of the request."""
        self.look()
        of_request = [chunk.message for chunk in self.got if chunk.request_id == request_id]
        return [
            (place, list(message.events))
            for place, message in enumerate(of_request)
            if isinstance(message, Marks)
        ]

    @property
    def status(self) -> Status:
        self.look()
        told = (chunk.message for chunk in reversed(self.got))
        return next(message for message in told if isinstance(message, Status))

    @property
    def page(self) -> str:
        """What the stage measured last; empty before the first time."""
        self.look()
        told = (chunk.message for chunk in reversed(self.got))
        return next((page(one.families) for one in told if isinstance(one, Metrics)), "")

    def close(self) -> None:
        self.requests.close()
        self.outputs.close()


def is_idle(gateway: Gateway, requests_total: int) -> bool:
    status = gateway.status
    return (
        status.requests_total == requests_total
        and status.running == 0
        and not any(status.held.values())
    )


def measured(gateway: Gateway) -> dict[str, float]:
    """Without buckets."""
    samples = [one for family in families_in(gateway.page) for one in family.samples]
    return {one.name: one.value for one in samples if "le" not in one.labels}
