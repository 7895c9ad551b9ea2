"""Requests that failed, or that an operator looks up: their spans, lines and stamps."""

from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from support.faults.hanging_up import hang_up
from support.gateway.chats import URL, spoken
from support.gateway.serving import RunningGateway
from support.gateway.telemetry_client import admin
from support.log_lines import Lines
from support.servers.collector import Collector
from support.waiting import wait_until

from omnistage.server.http.state import WithState
from omnistage.server.telemetry.follow import Followed, Following
from omnistage.server.telemetry.recent import RecentTraces
from omnistage.stages.messages.trace_context import TraceContext


def test_a_failed_request_s_span_says_so(client: httpx.Client, collector: Collector) -> None:
    answer = client.post(URL, json=spoken("break"))
    assert answer.status_code >= 500
    root = TraceContext.parse(answer.headers["traceparent"])
    assert root is not None
    (whole,) = [
        span for span in collector.of(root.trace_id, root.span_id) if span.span_id == root.span_id
    ]
    assert whole.has_failed


def test_the_latest_requests_can_be_asked_for(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    answer = client.post(URL, json=spoken("words"))
    client.get("/v1/models")
    latest = admin(gateway).json()["traces"][0]
    assert latest["ids"] == [answer.json()["id"]]
    assert latest["outcome"] == "finished"
    names = (latest["request_id"], answer.json()["id"], latest["trace_id"])
    told = [admin(gateway, f"/{name}").json() for name in names]
    assert told[0] == told[1] == told[2]
    assert {stage["stage"] for stage in told[0]["stages"]} == {"thinker", "code2wav"}
    steps = told[0]["steps"]
    assert steps[0]["start_ms"] == 0.0
    assert [step["start_ms"] for step in steps[1:]] == [step["end_ms"] for step in steps[:-1]]


def test_a_request_that_hangs_can_be_asked_for(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    headers = {"x-request-id": "hangs"}
    thinker = gateway.stages.stages["thinker"]
    hang_up(
        gateway.url + URL,
        lambda: thinker.tasks,
        json=spoken("hang"),
        headers={**client.headers, **headers},
    )
    wait_until(lambda: admin(gateway, "/hangs").json()["status"] == 499)
    told = admin(gateway, "/hangs").json()
    assert [step["event"] for step in told["steps"]] == ["admitted", "sent"]
    assert (told["status"], told["outcome"]) == (499, "cancelled")


def test_a_request_that_runs_can_be_asked_for(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    told: dict[str, Any] = {}

    def is_known() -> bool:
        answer = admin(gateway, "/runs")
        told.update(answer.json() if answer.status_code == 200 else {})
        return bool(told)

    headers = {**client.headers, "x-request-id": "runs"}
    hang_up(gateway.url + URL, is_known, json=spoken("hang"), headers=headers)
    assert told["request_id"] == "runs"
    assert not {"status", "outcome", "seconds"} & told.keys()
    wait_until(lambda: admin(gateway, "/runs").json().get("outcome") == "cancelled")


async def test_an_exception_that_nobody_foresaw_is_a_failure_with_its_status(
    lines: "Lines",
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    async def nothing(message: Message) -> None:
        return

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    recent = RecentTraces()
    app = WithState(Followed(broken, Following(recent, None), {URL}))
    with pytest.raises(ValueError, match="broken"):
        await app({"type": "http", "method": "POST", "path": URL, "headers": []}, gone, nothing)
    (line,) = lines.wait()
    assert line.getMessage().startswith("POST /v1/chat/completions 500 failed, ")
    assert [trace.outcome for trace in recent.latest()] == ["failed"]


def test_an_unknown_request_is_a_404(gateway: RunningGateway) -> None:
    answer = admin(gateway, "/nobody")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_request")


def test_with_an_admin_key_nobody_without_it_is_told(client: httpx.Client) -> None:
    assert client.get("/admin/traces").status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "first"),
    [
        ("/v1/completions", {"prompt": "words", "max_tokens": 4}, "first_text"),
        ("/v1/audio/speech", {"input": "words", "voice": "ethan"}, "first_audio"),
    ],
)
def test_every_endpoint_stamps_what_it_hands_on_first(
    path: str, body: dict[str, Any], first: str, client: httpx.Client, gateway: RunningGateway
) -> None:
    assert client.post(path, json=body).status_code == 200
    told = admin(gateway).json()["traces"][0]
    assert told["path"] == path
    steps = admin(gateway, f"/{told['request_id']}").json()["steps"]
    assert (steps[-1]["stage"], steps[-1]["event"]) == ("gateway", first)
