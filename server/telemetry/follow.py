"""Follows each request from its first byte to its last: one log line, one trace."""

import logging
from collections.abc import Collection
from typing import Protocol
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnistage.server.common.outcome import Outcome
from omnistage.server.common.trace import ENDED, GATEWAY, RECEIVED, Trace
from omnistage.server.http.state import start_of, state_of
from omnistage.server.telemetry.recent import RecentTraces, summary_of
from omnistage.stages.messages.trace_context import HEADER, TraceContext

logger = logging.getLogger(__name__)

PROBES = frozenset({"/health", "/ready", "/metrics"})
WEBSOCKET = "WEBSOCKET"  # told in place of a method
MAX_PATH = 256  # characters of it that are told
ERROR_STATUS = 500  # of an exception that nobody foresaw: it is answered further out


class TraceExporter(Protocol):
    """Where traces go."""

    def begin(self, parent: TraceContext | None, name: str) -> TraceContext:
        """The context of a request's span, below that of its client."""

    def export(self, trace: Trace) -> None:
        """Send a request that has ended."""


class Following:
    """Begins and ends the traces of requests: keeps, tells and exports them."""

    def __init__(self, recent: RecentTraces, exporter: TraceExporter | None) -> None:
        self._recent = recent
        self._exporter = exporter

    def begin(self, trace: Trace, method: str, scope: Scope, is_answer: bool) -> None:
        """A request has come; answers are kept and exported."""
        trace.timeline.mark(GATEWAY, RECEIVED)
        # Encoded again: a client may have hidden a line's end in its path.
        trace.method, trace.path = method, quote(scope["path"])[:MAX_PATH]
        trace.parent = TraceContext.parse(Headers(scope=scope).get(HEADER))
        if is_answer and self._exporter is not None:
            trace.context = self._exporter.begin(trace.parent, trace.path)
            trace.is_recorded = trace.context.is_sampled
        elif trace.parent is not None:
            trace.context = trace.parent.child()
        if is_answer:
            self._recent.add(trace)

    def end(self, trace: Trace) -> None:
        """It has its answer."""
        trace.timeline.mark(GATEWAY, ENDED)
        logger.info("%s", line_of(trace), extra={"request": summary_of(trace)})
        if self._exporter is not None and trace.is_recorded:
            self._exporter.export(trace)


class Followed:
    """ASGI middleware: follows all requests but probes, and keeps those to some endpoints.

    W3C's header `traceparent` is read, and answered where the client sent one or spans are made.
    """

    def __init__(self, app: ASGIApp, following: Following, endpoints: Collection[str]) -> None:
        self._app = app
        self._following = following
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        state = state_of(scope)
        trace = state.trace
        method = scope.get("method", WEBSOCKET)
        is_answer = method == "POST" and scope["path"] in self._endpoints
        self._following.begin(trace, method, scope, is_answer)

        async def send_with_context(message: Message) -> None:
            if start_of(message) is not None and trace.context is not None:
                MutableHeaders(scope=message)[HEADER] = trace.context.header
            await send(message)

        outcome, unforeseen_status = Outcome.CANCELLED, None
        try:
            await self._app(scope, receive, send_with_context)
            outcome = state.outcome
        except Exception:
            outcome, unforeseen_status = Outcome.FAILED, ERROR_STATUS
            raise
        finally:
            trace.outcome, trace.status = outcome, state.status or unforeseen_status
            self._following.end(trace)


def line_of(trace: Trace) -> str:
    """Returns what is said of a request that has ended; its id is before it."""
    known = summary_of(trace)
    parts = [f"{trace.method} {trace.path} {trace.status or '-'} {trace.outcome}"]
    parts += [f"{known['seconds']:.3f} s"]
    for name, unit in (("tokens_in", "tokens in"), ("tokens_out", "out"), ("images", "images")):
        if name in known:
            parts.append(f"{known[name]} {unit}")
    if "audio_s" in known:
        parts.append(f"{known['audio_s']:.2f} s of audio")
    for name, title in (("ttft_s", "TTFT"), ("ttfp_s", "TTFP")):
        if name in known:
            parts.append(f"{title} {1e3 * known[name]:.0f} ms")
    return ", ".join(parts)
