"""W3C's trace context, as its specification gives examples of it."""

import subprocess
import sys

import pytest

from omnistage.stages.messages.trace_context import TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "context"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, is_sampled=False)),
        (f" 00-{TRACE}-{SPAN}-03\t", TraceContext(TRACE, SPAN)),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", TraceContext(TRACE, SPAN)),
        (f"cc-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN)),
    ],
)
def test_a_valid_header_names_a_span(header: str, context: TraceContext) -> None:
    assert TraceContext.parse(header) == context


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n00-{TRACE}-{SPAN}-01",
        f"00-\N{ARABIC-INDIC DIGIT ZERO}{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_a_header_that_is_not_valid_is_as_none(header: str | None) -> None:
    assert TraceContext.parse(header) is None


@pytest.mark.parametrize("is_sampled", [True, False])
def test_what_is_sent_on_is_read_as_it_was(is_sampled: bool) -> None:
    context = TraceContext(TRACE, SPAN, is_sampled)
    assert TraceContext.parse(context.header) == context


def test_spans_below_one_are_of_its_trace() -> None:
    root = TraceContext(TRACE, SPAN, is_sampled=False)
    children = [root.child(), root.child(), root.named("thinker"), root.named("talker")]
    assert {(child.trace_id, child.is_sampled) for child in children} == {(TRACE, False)}
    assert len({SPAN, *(child.span_id for child in children)}) == 5


def test_a_name_is_the_same_span_in_every_process() -> None:
    program = (
        "from omnistage.stages.messages.trace_context import TraceContext\n"
        f"print(TraceContext('{TRACE}', '{SPAN}').named('thinker').span_id)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == TraceContext(TRACE, SPAN).named("thinker").span_id


def test_traces_that_begin_here_are_valid_and_differ() -> None:
    one, other = TraceContext.begin(), TraceContext.begin()
    assert one.trace_id != other.trace_id
    assert TraceContext.parse(one.header) == one
