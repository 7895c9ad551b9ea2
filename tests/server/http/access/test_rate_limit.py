"""So many requests a minute, by client."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI, RateLimitError
from starlette.types import Message, Receive, Scope, Send
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway

from omnistage.server.http.access import rate_limit
from omnistage.server.http.access.keys import Keys
from omnistage.server.http.access.rate_limit import RateLimit
from omnistage.server.http.state import PLACE, RequestState

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Asked:
    """A limit, and who asks through it."""

    def __init__(self, per_minute: int) -> None:
        self.clock = Clock()
        self.limit = RateLimit(_answer, per_minute, self.clock)

    async def status(self, client: str, method: str = "POST") -> int:
        """What the answer to one request is."""
        return (await self.answer(client, method))[0]

    async def answer(
        self, client: str, method: str = "POST", path: str = "/v1/completions"
    ) -> tuple[int, dict[str, str]]:
        """Status and headers."""
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [],
            PLACE: RequestState(key=client),
        }
        await self.limit(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_a_client_may_ask_so_often_and_again_when_it_has_waited() -> None:
    asked = Asked(3)
    assert [await asked.status("a") for _ in range(5)] == [200, 200, 200, 429, 429]
    asked.clock.now += 19.9
    assert await asked.status("a") == 429
    asked.clock.now += 0.1
    assert [await asked.status("a") for _ in range(2)] == [200, 429]
    asked.clock.now += 3600
    assert [await asked.status("a") for _ in range(4)] == [200, 200, 200, 429]


async def test_clients_do_not_use_each_others_allowance() -> None:
    asked = Asked(1)
    assert [await asked.status(one) for one in "abab"] == [200, 200, 429, 429]


async def test_what_only_reads_does_not_count() -> None:
    asked = Asked(1)
    assert [await asked.status("a", "GET") for _ in range(3)] == [200, 200, 200]
    assert await asked.status("a") == 200


async def test_what_is_written_counts_also_where_anybody_may_read() -> None:
    asked = Asked(1)
    path = "/v1/audio/voices"
    assert [(await asked.answer("a", path=path))[0] for _ in range(2)] == [200, 429]


async def test_commands_of_an_admin_do_not_count() -> None:
    asked = Asked(1)
    assert [(await asked.answer("a", path="/admin/sleep"))[0] for _ in range(3)] == [200] * 3
    assert await asked.status("a") == 200


async def test_the_headers_say_what_is_left() -> None:
    asked = Asked(4)
    for left in (3, 2, 1, 0, 0):
        status, headers = await asked.answer("a")
        assert headers["x-ratelimit-limit-requests"] == "4"
        assert headers["x-ratelimit-remaining-requests"] == str(left)
    assert status == 429
    assert headers["retry-after"] == "15"
    assert headers["x-ratelimit-reset-requests"] == "60.000s"


async def test_only_so_many_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MAX_CLIENTS", 2)
    asked = Asked(1)
    assert [await asked.status(one) for one in "abcbca"] == [200, 200, 200, 429, 429, 200]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("limited")
    with running_gateway(folder, OMNI, keys=Keys(["ann", "bob"]), requests_per_minute=2) as running:
        yield running


def test_the_sdk_understands_the_refusal(limited: RunningGateway) -> None:
    with OpenAI(base_url=f"{limited.url}/v1", api_key="ann", max_retries=0) as openai:
        for _ in range(2):
            openai.chat.completions.create(**BODY)  # type: ignore[call-overload]
        with pytest.raises(RateLimitError) as caught:
            openai.chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.type == "requests"
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_another_key_and_the_probes_are_not_limited(limited: RunningGateway) -> None:
    with httpx.Client(base_url=limited.url, headers={"authorization": "Bearer bob"}) as client:
        assert [client.get("/health").status_code for _ in range(4)] == [200] * 4
        statuses = [client.post("/v1/chat/completions", json=BODY).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert client.get("/v1/models").status_code == 200
