"""The latest requests, as they are remembered and told."""

from omnistage.server.common.outcome import Outcome
from omnistage.server.common.trace import ENDED, FIRST_TEXT, GATEWAY, RECEIVED, Trace
from omnistage.server.telemetry.recent import RecentTraces, details_of, summary_of
from omnistage.stages.messages.trace_context import TraceContext

MS = 1_000_000


def ended_trace() -> Trace:
    trace = Trace("req_1", "POST", "/v1/chat/completions", graph_ids=["chatcmpl-1"])
    trace.status, trace.outcome = 200, Outcome.FINISHED
    for stage, event, ms in (
        (GATEWAY, RECEIVED, 5),
        (GATEWAY, "sent", 7),
        ("thinker", "first_token", 15),
        (GATEWAY, FIRST_TEXT, 16),
        (GATEWAY, ENDED, 105),
    ):
        trace.timeline.mark(stage, event, ms * MS)
    return trace


def test_the_oldest_go_when_there_are_too_many() -> None:
    recent = RecentTraces(3)
    for number in range(5):
        recent.add(Trace(f"req_{number}"))
    assert [trace.request_id for trace in recent.latest()] == ["req_4", "req_3", "req_2"]
    assert recent.find("req_1") == []


def test_a_request_is_found_by_each_of_its_names_and_the_last_of_a_name_counts() -> None:
    recent = RecentTraces()
    first, last = ended_trace(), ended_trace()
    last.graph_ids = ["chatcmpl-2"]
    last.context = TraceContext.begin()
    for trace in (first, last):
        recent.add(trace)
    assert recent.find("req_1") == [last]
    assert recent.find("chatcmpl-1") == [first]
    assert recent.find(last.context.trace_id) == [last]
    assert recent.find("chatcmpl-3") == []


def test_a_summary_has_what_is_known() -> None:
    trace = ended_trace()
    trace.num_tokens_out = 7
    assert summary_of(trace) == {
        "request_id": "req_1",
        "ids": ["chatcmpl-1"],
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "outcome": "finished",
        "seconds": 0.1,
        "ttft_s": 0.011,
        "tokens_out": 7,
    }


def test_details_count_from_the_receipt() -> None:
    details = details_of(ended_trace())
    assert [(step["event"], step["start_ms"], step["end_ms"]) for step in details["steps"]] == [
        ("sent", 0.0, 2.0),
        ("first_token", 2.0, 10.0),
        ("first_text", 10.0, 11.0),
    ]
    assert details["stages"] == [{"stage": "thinker", "start_ms": 2.0, "end_ms": 10.0}]
    assert details["timeline"][0] == {"stage": GATEWAY, "event": RECEIVED, "ms": 0.0}


def test_a_request_that_runs_is_told_without_its_end() -> None:
    trace = Trace("req_1", "POST", "/v1/videos/sync")
    trace.timeline.mark(GATEWAY, RECEIVED)
    assert summary_of(trace).keys() == {"request_id", "method", "path"}
    assert details_of(trace)["steps"] == []
