"""Traces of requests through real stages and engines, as a collector and a person get them."""

import time
from collections.abc import Iterator

import httpx
import pytest
from support.api.prompts import QUESTIONS
from support.servers.collector import Collector, Span
from support.servers.first_packet import FirstPacket, Speaker
from support.servers.server import ADMIN_KEY, TinyServer

from omnistage.stages.messages.trace_context import TraceContext

pytestmark = pytest.mark.engine

HELLO = QUESTIONS[0].messages
LEAST_SHARE, MOST_REQUESTS = 0.95, 50
CLIENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.fixture
def speaker(server: TinyServer) -> Iterator[Speaker]:
    connected = Speaker(server.url)
    yield connected
    connected.close()


def way_to_the_first_packet(spans: list[Span], root: TraceContext) -> list[Span]:
    """The steps of a request, up to the one that hands its first sound on."""
    steps = [span for span in spans if "omnistage.event" in span.attributes]
    names = [span.name for span in steps]
    return steps[: names.index("gateway first_audio") + 1]


def test_a_trace_s_spans_sum_to_the_client_s_time_to_the_first_packet(
    server: TinyServer, speaker: Speaker, collector: Collector
) -> None:
    """Laid end to end, within 5 %: what the client waits for is what the spans show.

    One of several requests shows it: at others the machine may let the client wait.
    """
    shares = list[float]()
    while not shares or shares[-1] < LEAST_SHARE:
        assert len(shares) < MOST_REQUESTS, shares
        packet: FirstPacket = speaker.ask(server.body(HELLO))
        spans = collector.of(packet.span.trace_id, until=packet.span.span_id)
        way = way_to_the_first_packet(spans, packet.span)
        (whole,) = [span for span in spans if span.span_id == packet.span.span_id]
        assert way[0].start_ns == whole.start_ns
        assert [span.start_ns for span in way[1:]] == [span.end_ns for span in way[:-1]]
        shares.append(sum(span.seconds for span in way) / packet.seconds)
        assert shares[-1] <= 1


async def test_vllm_s_own_spans_lie_below_those_of_their_stages(
    server: TinyServer, collector: Collector
) -> None:
    began_ns = time.time_ns()
    async with httpx.AsyncClient(timeout=600) as client:
        headers = {"traceparent": CLIENT.header}
        url = f"{server.url}/v1/chat/completions"
        answer = await client.post(url, json=server.body(HELLO), headers=headers)
    root = TraceContext.parse(answer.headers["traceparent"])
    assert root is not None
    stages = {root.named(name).span_id: name for name in ("thinker", "talker", "code2wav")}
    spans = collector.of(CLIENT.trace_id, until=root.span_id, num_engines=2)
    known = {span.span_id: span for span in spans}
    assert known[root.span_id].parent_id == CLIENT.span_id
    assert {known[span_id].name for span_id in stages} == set(stages.values())
    engines = [span for span in spans if span.service.startswith("omnistage.")]
    assert [(span.name, stages[span.parent_id], span.service) for span in engines] == [
        ("llm_request", "thinker", "omnistage.thinker"),
        ("llm_request", "talker", "omnistage.talker"),
    ]
    for span in engines:
        assert began_ns < span.start_ns < span.end_ns < time.time_ns()
        assert span.attributes["gen_ai.usage.completion_tokens"] > 0  # type: ignore[operator]


async def test_a_request_can_be_asked_for_after_its_answer(server: TinyServer) -> None:
    reply = await server.ask(HELLO)
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient(timeout=600, headers=headers) as client:
        told = (await client.get(f"{server.url}/admin/traces/{reply.raw['id']}")).json()
    assert [stage["stage"] for stage in told["stages"]] == ["thinker", "talker", "code2wav"]
    assert told["steps"][-1]["event"] == "first_audio"
    for row in (*told["steps"], *told["stages"]):
        assert 0 <= row["start_ms"] <= row["end_ms"] <= 1e3 * told["seconds"]
