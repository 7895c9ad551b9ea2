"""A gateway whose metrics change by what a test asks."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from support.gateway.serving import MODEL, RunningGateway
from support.repository.metrics_docs import families_in

CHAT, SPEECH, PICTURES = "/v1/chat/completions", "/v1/audio/speech", "/v1/images/generations"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "wav"}}
Change = tuple[float, str, dict[str, str]]


def change(by: float, name: str, **labels: str) -> Change:
    return by, f"omnistage_{name}", labels


class Server:
    """A gateway whose counts nobody else moves."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway

    def page(self) -> str:
        response = httpx.get(f"{self.gateway.url}/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return response.text

    def families(self) -> list[Metric]:
        return families_in(self.page())

    def values(self, changes: tuple[Change, ...]) -> list[float]:
        """Of the samples that are meant, 0 of those that are not there."""
        samples = [one for family in self.families() for one in family.samples]
        found = {(one.name, *sorted(one.labels.items())): one.value for one in samples}
        return [found.get((name, *sorted(labels.items())), 0.0) for _, name, labels in changes]

    @contextmanager
    def moves(self, *changes: Change) -> Iterator[None]:
        """What is done inside has these effects, soon after the client has its answer."""
        before = self.values(changes)
        wanted = [value + by for value, (by, *_) in zip(before, changes, strict=True)]
        yield
        deadline = time.monotonic() + 600
        while (values := self.values(changes)) != pytest.approx(wanted):
            assert time.monotonic() < deadline, (changes, values, wanted)

    def post(self, url: str, **body: Any) -> int:
        body["model"] = MODEL
        return httpx.post(self.gateway.url + url, json=body, timeout=600).status_code

    def chat(self, words: str, **more: Any) -> int:
        return self.post(CHAT, **chat_body(words), **more)


def chat_body(words: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}]}
