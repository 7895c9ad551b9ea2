"""Requests as OpenTelemetry's spans, made from their stamps when they have ended.

Only a server that is told to export imports this, and OpenTelemetry with it.
"""

import os
import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from omnistage.server.common.outcome import Outcome
from omnistage.server.common.trace import AGAIN, ENDED, GATEWAY, RECEIVED, Trace
from omnistage.stages.messages.trace_context import TraceContext

SERVICE = "omnistage"
Attributes = Mapping[str, str | int | float]


class KnownIds(IdGenerator):
    """Gives each span the ids that others were told before it was made."""

    def __init__(self) -> None:
        self.of = TraceContext.begin()

    def generate_trace_id(self) -> int:
        """That of the next span."""
        return int(self.of.trace_id, 16)

    def generate_span_id(self) -> int:
        """That of the next span."""
        return int(self.of.span_id, 16)


class SpanExport:
    """Makes spans and hands them to a thread that sends them by OTLP over HTTP.

    OpenTelemetry's own environment variables say how many are sampled, and how spans are batched.
    """

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        self._ids = KnownIds()
        self._offset_ns = 0  # of the wall clock from that of the stamps
        name = os.environ.get("OTEL_SERVICE_NAME", SERVICE)
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name}), id_generator=self._ids
        )
        made = OTLPSpanExporter(endpoint=endpoint) if exporter is None else exporter
        self._provider.add_span_processor(BatchSpanProcessor(made))
        self._tracer = self._provider.get_tracer(SERVICE)

    def begin(self, parent: TraceContext | None, name: str) -> TraceContext:
        """The context of a request's span, below that of its client."""
        context = TraceContext.begin() if parent is None else parent.child()
        sampler = self._provider.sampler
        chosen = sampler.should_sample(_below(parent), int(context.trace_id, 16), name)
        is_sampled = chosen.decision is Decision.RECORD_AND_SAMPLE
        return TraceContext(context.trace_id, context.span_id, is_sampled)

    def export(self, trace: Trace) -> None:
        """Make the spans of a request that has ended: its stages, the steps of each, itself."""
        assert trace.context is not None
        root, marks = trace.context, trace.timeline.marks
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        for stage, times in trace.timeline.stages.items():
            self._add(stage, root.named(stage), root, times, {"omnistage.stage": stage})
        for step in trace.timeline.steps:
            above = root if step.stage == GATEWAY else root.named(step.stage)
            name = f"{step.stage} {step.event}"
            about = {"omnistage.stage": step.stage, "omnistage.event": step.event}
            self._add(name, root.named(name), above, (step.start_ns, step.end_ns), about)
        self._add(
            f"{trace.method} {trace.path}",
            root,
            trace.parent,
            (marks[GATEWAY, RECEIVED], marks[GATEWAY, ENDED]),
            attributes_of(trace),
            has_failed=trace.outcome is Outcome.FAILED,
            kind=SpanKind.SERVER,
        )

    def _add(
        self,
        name: str,
        context: TraceContext,
        parent: TraceContext | None,
        times: tuple[int, int],
        attributes: Attributes,
        has_failed: bool = False,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self._ids.of = context
        start_ns, end_ns = (at_ns + self._offset_ns for at_ns in times)
        span = self._tracer.start_span(
            name, _below(parent), kind=kind, attributes=attributes, start_time=start_ns
        )
        if has_failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)


def _below(parent: TraceContext | None) -> Context:
    """The place of a span in its trace."""
    if parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
    ids = int(parent.trace_id, 16), int(parent.span_id, 16)
    span = SpanContext(*ids, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(span), Context())


def attributes_of(trace: Trace) -> Attributes:
    """Returns what a request's own span says, by OpenTelemetry's names where it has any."""
    known: dict[str, str | int | float | None] = {
        "http.request.method": trace.method,
        "url.path": trace.path,
        "http.response.status_code": trace.status,
        "omnistage.request_id": trace.request_id,
        "omnistage.outcome": trace.outcome,
        "gen_ai.response.id": trace.graph_ids[-1].removesuffix(AGAIN) if trace.graph_ids else None,
        "gen_ai.usage.input_tokens": trace.num_tokens_in or None,
        "gen_ai.usage.output_tokens": trace.num_tokens_out or None,
        "omnistage.audio_s": trace.audio_s or None,
        "omnistage.images": trace.num_images or None,
    }
    return {name: value for name, value in known.items() if value is not None}
