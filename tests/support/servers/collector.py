"""An OpenTelemetry collector: takes spans by OTLP over HTTP and remembers them."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.waiting import wait_until

GATEWAY = "omnistage"  # as a service


@dataclass(frozen=True)
class Span:
    """One span as it came."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int | float]
    has_failed: bool

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Collector:
    """What has come, from every process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []

    def of(self, trace_id: str, until: str, num_engines: int = 0) -> list[Span]:
        """A trace in the order of its spans' starts, once all that is waited for has come.

        That is what the gateway sends with the span `until`, and a span of so many engines.
        """

        def found() -> list[Span]:
            return [span for span in self.spans if span.trace_id == trace_id]

        def is_whole() -> bool:
            engines = {span.service for span in found()} - {GATEWAY}
            return len(engines) >= num_engines and any(span.span_id == until for span in found())

        wait_until(is_whole)
        return sorted(found(), key=lambda span: (span.start_ns, span.end_ns))

    def take(self, body: bytes) -> None:
        """One request of an exporter."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_read(span, about["service.name"]) for span in scope.spans]


def _read(span: object, service: str) -> Span:
    told: dict[str, str | int | float] = {}
    for one in span.attributes:  # type: ignore[attr-defined]
        told[one.key] = getattr(one.value, one.value.WhichOneof("value"))
    return Span(
        service,
        span.name,  # type: ignore[attr-defined]
        span.trace_id.hex(),  # type: ignore[attr-defined]
        span.span_id.hex(),  # type: ignore[attr-defined]
        span.parent_span_id.hex(),  # type: ignore[attr-defined]
        span.start_time_unix_nano,  # type: ignore[attr-defined]
        span.end_time_unix_nano,  # type: ignore[attr-defined]
        told,
        span.status.code == 2,  # type: ignore[attr-defined]
    )


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    """Listen until the context ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(600)
