"""What is told of requests to a gateway over fake stages: lines, headers, traces."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from support.chats import TEXT, URL, spoken
from support.collector import Collector, running_collector
from support.gateway import OMNI, RunningGateway, running_gateway
from support.hanging_up import hang_up
from support.waiting import wait_until

from omnistage.server.http.access.keys import Keys
from omnistage.server.http.state import WithState
from omnistage.server.telemetry.follow import Followed, Following
from omnistage.server.telemetry.recent import RecentTraces
from omnistage.stages.messages.trace_context import TraceContext

CLIENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
ADMIN = {"Authorization": "Bearer sk-admin"}
FOLLOW = "omnistage.server.telemetry.follow"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    """One that exports spans and can be asked for traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        options: dict[str, Any] = {
            "traces_url": collector.url,
            "admin_keys": Keys(["sk-admin"]),
            "keys": Keys(["sk-user"]),
        }
        with running_gateway(tmp_path_factory.mktemp("traced"), OMNI, **options) as running:
            yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    headers = {"Authorization": "Bearer sk-user"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=600) as connected:
        yield connected


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> "Lines":
    caplog.set_level(logging.INFO)
    return Lines(caplog)


class Lines:
    """What is said of requests that have ended."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def wait(self, count: int = 1) -> list[logging.LogRecord]:
        """So many records, and no more."""

        def found() -> list[logging.LogRecord]:
            return [one for one in self._caplog.records if one.name == FOLLOW]

        wait_until(lambda: len(found()) >= count)
        assert len(found()) == count
        return found()


def admin(gateway: RunningGateway, name: str = "") -> httpx.Response:
    return httpx.get(f"{gateway.url}/admin/traces{name}", headers=ADMIN)


# Lines


def test_a_request_is_one_line_with_what_was_made(client: httpx.Client, lines: Lines) -> None:
    answer = client.post(URL, json=spoken("words"), headers={"x-request-id": "mine-1"})
    (line,) = lines.wait()
    pattern = (
        r"POST /v1/chat/completions 200 finished, \d+\.\d{3} s, \d+ tokens in, \d+ out, "
        r"0\.10 s of audio, TTFT \d+ ms, TTFP \d+ ms"
    )
    assert re.fullmatch(pattern, line.getMessage())
    told = vars(line)["request"]
    assert told["request_id"] == "mine-1"
    assert told["ids"] == [answer.json()["id"]]
    assert told["tokens_out"] == 3


def test_a_stream_s_line_comes_at_its_end(client: httpx.Client, lines: Lines) -> None:
    with client.stream("POST", URL, json=spoken("words", stream=True)) as response:
        assert "data: [DONE]" in list(response.iter_lines())
    (line,) = lines.wait()
    assert vars(line)["request"]["outcome"] == "finished"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_probes_have_no_line(path: str, client: httpx.Client, lines: Lines) -> None:
    assert client.get(path).status_code == 200
    assert client.get("/v1/models").status_code == 200
    (line,) = lines.wait()
    assert line.getMessage().startswith("GET /v1/models 200 finished, ")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({**TEXT, "n": 0}, {}, 400),
        (TEXT, {"authorization": "Bearer wrong"}, 401),
        (TEXT, {"x-request-id": "two words"}, 400),
        (spoken("refuse"), {}, 400),
    ],
)
def test_a_refusal_has_a_line(
    body: dict[str, Any],
    headers: dict[str, str],
    status: int,
    client: httpx.Client,
    lines: Lines,
) -> None:
    refused = client.post(URL, json=body, headers=headers)
    assert refused.status_code == status
    (line,) = lines.wait()
    told = vars(line)["request"]
    assert (told["status"], told["outcome"]) == (status, "refused")
    assert told["request_id"] == refused.headers["x-request-id"]


def test_a_path_is_told_without_what_would_be_a_line_of_its_own(
    client: httpx.Client, lines: Lines
) -> None:
    assert client.get("/v1/none%0AERROR%1b[31m all is lost" + "x" * 1000).status_code == 404
    (line,) = lines.wait()
    assert line.getMessage().startswith("GET /v1/none%0AERROR%1B%5B31m%20all%20is%20lostxxx")
    assert line.getMessage().isprintable()
    assert len(line.getMessage()) < 350


def test_who_hangs_up_has_one_line_too(
    client: httpx.Client, lines: Lines, gateway: RunningGateway
) -> None:
    with client.stream("POST", URL, json=spoken("endless", stream=True)) as response:
        next(response.iter_lines())
    gateway.wait_until_idle()
    (line,) = lines.wait()
    assert vars(line)["request"]["outcome"] == "cancelled"


# W3C's trace context


def test_a_client_s_trace_goes_on_in_the_answer(client: httpx.Client) -> None:
    answer = client.post(URL, json=TEXT, headers={"traceparent": CLIENT.header})
    told = TraceContext.parse(answer.headers["traceparent"])
    assert told is not None
    assert (told.trace_id, told.is_sampled) == (CLIENT.trace_id, True)
    assert told.span_id != CLIENT.span_id


def test_without_a_client_s_trace_one_begins(client: httpx.Client) -> None:
    answers = [client.post(URL, json=TEXT) for _ in range(2)]
    told = [TraceContext.parse(answer.headers["traceparent"]) for answer in answers]
    assert None not in told
    assert len({one.trace_id for one in told if one is not None}) == 2


def test_a_server_that_exports_nothing_only_hands_a_client_s_trace_on(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        assert "traceparent" not in client.post(URL, json=TEXT).headers
        answer = client.post(URL, json=TEXT, headers={"traceparent": CLIENT.header})
        told = TraceContext.parse(answer.headers["traceparent"])
        assert told is not None
        assert told.trace_id == CLIENT.trace_id
        assert gateway.do(lambda: gateway.stages.stages["thinker"].last_request.traceparent) is None


def test_stages_are_told_the_span_that_the_client_is_told(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    answer = client.post(URL, json=TEXT)
    thinker = gateway.stages.stages["thinker"]
    told = gateway.do(lambda: thinker.last_request.traceparent)
    assert told == answer.headers["traceparent"]


def test_what_a_client_does_not_record_stays_unrecorded(
    client: httpx.Client, gateway: RunningGateway, collector: Collector
) -> None:
    parent = TraceContext(CLIENT.trace_id, "00f067aa0ba902b8", is_sampled=False)
    unrecorded = TraceContext("0af7651916cd43dd8448eb211c80319c", parent.span_id, False)
    answer = client.post(URL, json=TEXT, headers={"traceparent": unrecorded.header})
    assert answer.headers["traceparent"].endswith("-00")
    thinker = gateway.stages.stages["thinker"]
    assert gateway.do(lambda: thinker.last_request.traceparent) is None
    recorded = TraceContext.parse(client.post(URL, json=TEXT).headers["traceparent"])
    assert recorded is not None
    assert collector.of(recorded.trace_id, recorded.span_id)  # exported after it
    assert not [span for span in collector.spans if span.trace_id == unrecorded.trace_id]


# Spans


def test_a_request_s_spans_come_by_otlp(client: httpx.Client, collector: Collector) -> None:
    answer = client.post(URL, json=spoken("words"), headers={"traceparent": CLIENT.header})
    root = TraceContext.parse(answer.headers["traceparent"])
    assert root is not None
    named = {root.named(name).span_id: name for name in ("thinker", "code2wav")}
    spans = {span.span_id: span for span in collector.of(CLIENT.trace_id, root.span_id)}
    whole = spans[root.span_id]
    assert (whole.service, whole.parent_id) == ("omnistage", CLIENT.span_id)
    assert whole.attributes["http.response.status_code"] == 200
    assert {spans[span_id].parent_id for span_id in named} == {root.span_id}
    below = [span for span in spans.values() if span.parent_id in named]
    assert {span.name for span in below} >= {"thinker received", "code2wav first_output"}
    for span in below:
        stage = spans[span.parent_id]
        assert stage.start_ns <= span.start_ns <= span.end_ns <= stage.end_ns <= whole.end_ns


def test_a_failed_request_s_span_says_so(client: httpx.Client, collector: Collector) -> None:
    answer = client.post(URL, json=spoken("break"))
    assert answer.status_code >= 500
    root = TraceContext.parse(answer.headers["traceparent"])
    assert root is not None
    (whole,) = [
        span for span in collector.of(root.trace_id, root.span_id) if span.span_id == root.span_id
    ]
    assert whole.has_failed


# The latest


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
