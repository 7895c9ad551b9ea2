"""What is told of requests to a gateway over fake stages: lines, headers, traces."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.chats import TEXT, URL, spoken
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.log_lines import Lines
from support.servers.collector import Collector

from omnistage.stages.messages.trace_context import TraceContext

CLIENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


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
