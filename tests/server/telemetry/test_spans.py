"""Spans of requests, as a collector gets them."""

import time

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from omnistage.server.common.outcome import Outcome
from omnistage.server.common.trace import AGAIN, ENDED, FIRST_AUDIO, GATEWAY, RECEIVED, Trace
from omnistage.server.telemetry.spans import SpanExport, attributes_of
from omnistage.stages.messages.trace_context import TraceContext

MS = 1_000_000
CLIENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


class Exported:
    """What is made of traces, without a collector."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.export = SpanExport("", self._memory)

    def spans(self, trace: Trace) -> dict[str, ReadableSpan]:
        """Of one trace that has ended, by name."""
        self.export.export(trace)
        self.export._provider.force_flush()
        return {span.name: span for span in self._memory.get_finished_spans()}


@pytest.fixture
def exported() -> Exported:
    return Exported()


def spoken(exported: Exported, parent: TraceContext | None = None) -> Trace:
    """A request with audio that has ended just now."""
    trace = Trace("req_1", "POST", "/v1/chat/completions", graph_ids=["chatcmpl-1"])
    trace.parent = parent
    trace.context = exported.export.begin(parent, trace.path)
    began_ns = time.monotonic_ns() - 100 * MS
    for stage, event, ms in (
        (GATEWAY, RECEIVED, 0),
        (GATEWAY, "sent", 2),
        ("thinker", "received", 3),
        ("thinker", "first_token", 10),
        ("code2wav", "first_samples", 20),
        (GATEWAY, FIRST_AUDIO, 21),
        ("thinker", "finished", 50),
        ("code2wav", "finished", 60),
        (GATEWAY, ENDED, 100),
    ):
        trace.timeline.mark(stage, event, began_ns + ms * MS)
    trace.status, trace.outcome, trace.num_tokens_out = 200, Outcome.FINISHED, 7
    return trace


def place(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Its trace, its own id and its parent's."""
    assert span.context is not None
    parent = None if span.parent is None else format_span_id(span.parent.span_id)
    return format_trace_id(span.context.trace_id), format_span_id(span.context.span_id), parent


def ms_of(span: ReadableSpan, zero_ns: int) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return round((span.start_time - zero_ns) / MS), round((span.end_time - zero_ns) / MS)


def test_a_request_is_one_trace_of_itself_its_stages_and_their_steps(exported: Exported) -> None:
    trace = spoken(exported)
    root = trace.context
    assert root is not None
    spans = exported.spans(trace)
    whole = spans["POST /v1/chat/completions"]
    assert whole.start_time is not None
    assert {name: ms_of(span, whole.start_time) for name, span in spans.items()} == {
        "POST /v1/chat/completions": (0, 100),
        "gateway sent": (0, 2),
        "thinker": (2, 50),
        "thinker received": (2, 3),
        "thinker first_token": (3, 10),
        "code2wav": (10, 60),
        "code2wav first_samples": (10, 20),
        "gateway first_audio": (20, 21),
    }
    assert place(whole) == (root.trace_id, root.span_id, None)
    assert whole.kind is SpanKind.SERVER
    thinker = root.named("thinker").span_id
    assert place(spans["thinker"]) == (root.trace_id, thinker, root.span_id)
    assert place(spans["thinker first_token"])[2] == thinker
    assert place(spans["gateway sent"])[2] == root.span_id
    assert len({place(span)[1] for span in spans.values()}) == len(spans)


def test_spans_are_on_the_wall_clock(exported: Exported) -> None:
    began_ns = time.time_ns()
    whole = exported.spans(spoken(exported))["POST /v1/chat/completions"]
    assert whole.end_time is not None
    assert began_ns - 1_000 * MS < whole.end_time < time.time_ns() + 1_000 * MS


def test_a_request_says_of_itself_what_is_known(exported: Exported) -> None:
    whole = exported.spans(spoken(exported))["POST /v1/chat/completions"]
    assert whole.attributes == {
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "omnistage.request_id": "req_1",
        "omnistage.outcome": "finished",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.output_tokens": 7,
    }
    assert whole.status.status_code is StatusCode.UNSET


def test_a_request_that_was_sent_again_is_told_by_the_name_that_its_client_knows(
    exported: Exported,
) -> None:
    trace = spoken(exported)
    trace.graph_ids.append(f"chatcmpl-1{AGAIN}")
    assert attributes_of(trace)["gen_ai.response.id"] == "chatcmpl-1"


def test_a_client_s_trace_goes_on(exported: Exported) -> None:
    whole = exported.spans(spoken(exported, CLIENT))["POST /v1/chat/completions"]
    trace_id, span_id, parent_id = place(whole)
    assert (trace_id, parent_id) == (CLIENT.trace_id, CLIENT.span_id)
    assert span_id != CLIENT.span_id


def test_a_failure_is_an_error_and_a_refusal_is_none(exported: Exported) -> None:
    failed, refused = spoken(exported), spoken(exported)
    failed.outcome, refused.outcome = Outcome.FAILED, Outcome.REFUSED
    name = "POST /v1/chat/completions"
    assert exported.spans(failed)[name].status.status_code is StatusCode.ERROR
    assert exported.spans(refused)[name].status.status_code is StatusCode.UNSET


def test_what_a_client_does_not_record_is_not_recorded(exported: Exported) -> None:
    parent = TraceContext(CLIENT.trace_id, CLIENT.span_id, is_sampled=False)
    assert not exported.export.begin(parent, "/v1/completions").is_sampled
    assert exported.export.begin(None, "/v1/completions").is_sampled


def test_opentelemetry_s_own_variables_choose_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    export = SpanExport("", InMemorySpanExporter())
    assert not export.begin(None, "/v1/completions").is_sampled
    assert export.begin(CLIENT, "/v1/completions").is_sampled
