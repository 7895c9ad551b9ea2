"""Counts what one app has answered, and puts the page of metrics of all processes together."""

import time
from collections.abc import Collection, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from starlette.types import ASGIApp, Receive, Scope, Send

from omnistage.server.common.outcome import Outcome
from omnistage.server.endpoints.present import Present
from omnistage.server.http.state import state_of
from omnistage.server.runtime.audio_pace import AudioPace
from omnistage.server.runtime.flight import Flight
from omnistage.server.runtime.runtime import Runtime
from omnistage.stages.messages.addresses import GATEWAY
from omnistage.stages.messages.families import SECONDS, families_of, page, stage_labels

RATIOS = (
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
    1.25,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
)
AHEAD = ("used", "cancelled", "failed")  # what becomes of an answer made ahead
OF_THIS_PROCESS = stage_labels(GATEWAY)


class RequestCounters:
    """The counts of one app, in a registry of its own; none is kept for each token."""

    def __init__(self, runtime: Runtime) -> None:
        self._fleet = runtime.fleet
        self._registry = CollectorRegistry()
        self._registry.register(Present(runtime))
        self._process = ProcessCollector(registry=None)
        self._requests = self._counter(
            "requests", "Requests by how they ended.", "endpoint", "outcome", "status"
        )
        self._latency = self._histogram(
            "e2e_request_latency_seconds", "From a request to the end of its answer.", "endpoint"
        )
        self._answers = self._counter(
            "answers", "Requests to the stages by how they ended.", "modality", "outcome"
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From the stages' start to the first text.", "modality"
        )
        self._first_audio = self._histogram(
            "time_to_first_audio_seconds",
            "From the stages' start to the first sound.",
            "modality",
        )
        self._waits = self._histogram(
            "request_wait_seconds",
            "From a request's place in the server until the stages get it.",
            "modality",
        )
        self._rtf = self._histogram(
            "real_time_factor",
            "Time from the stages' start to the last sound, over the length of all sound.",
            "modality",
            buckets=RATIOS,
        )
        self._gaps = self._histogram(
            "audio_gap_seconds", "Between two packets of sound of an answer.", "modality"
        )
        self._stalls = self._histogram(
            "audio_stall_seconds",
            "For how long a player of an answer had nothing to play, once it had begun.",
            "modality",
        )
        self._tokens_in = self._counter("prompt_tokens", "Tokens of prompts.", "modality")
        self._tokens_out = self._counter("generation_tokens", "Tokens of texts.", "modality")
        self._audio = self._counter("audio_seconds", "Sound that was made.", "modality")
        self._pictures = self._counter("pictures", "Pictures, of videos frames.", "modality")
        self._ahead = self._counter(
            "realtime_ahead", "Answers that sessions began before a turn had ended.", "outcome"
        )
        for outcome in AHEAD:
            self._ahead.labels(outcome)
        runtime.flights.watch(self._ended)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"omnistage_{name}", about, labels, registry=self._registry)

    def _histogram(
        self, name: str, about: str, *labels: str, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        full = f"omnistage_{name}"
        return Histogram(full, about, labels, registry=self._registry, buckets=buckets)

    def page(self) -> str:
        """Returns the metrics of all processes, in Prometheus' text format; of stages the last
        sent.
        """
        families = [
            *families_of(self._registry, {}),
            *families_of(self._process, OF_THIS_PROCESS),
        ]
        for link in self._fleet.stages.values():
            families += link.record.families
        return page(families)

    def answered(self, endpoint: str, outcome: Outcome, status: int | None, seconds: float) -> None:
        """An HTTP request has ended; without a status if nothing was sent."""
        self._requests.labels(endpoint, outcome, status or "").inc()
        if outcome is Outcome.FINISHED:
            self._latency.labels(endpoint).observe(seconds)

    def made_ahead(self, outcome: str) -> None:
        """Count an answer that a session began before its turn had ended."""
        self._ahead.labels(outcome).inc()

    def _ended(self, flight: Flight) -> None:
        """A request has left the graph."""
        modality = "+".join(flight.request.message.outputs)
        self._answers.labels(modality, flight.outcome).inc()
        if not flight.goes_on:
            self._observe_times(flight, modality)
        for counter, count in (
            (self._tokens_in, flight.num_tokens_in),
            (self._tokens_out, flight.num_tokens_out),
            (self._audio, flight.audio_s),
            (self._pictures, flight.num_images),
        ):
            if count:
                counter.labels(modality).inc(count)

    def _observe_times(self, flight: Flight, modality: str) -> None:
        """Records the times that its client waited."""
        for kind, first in (("text", self._first_token), ("audio", self._first_audio)):
            if kind in flight.first_at:
                first.labels(modality).observe(flight.first_at[kind] - flight.started_at)
        self._waits.labels(modality).observe(flight.waited_s)
        if flight.pace.last_at is not None:
            self._observe_pace(flight.pace, flight.started_at, modality, flight.outcome)

    def _observe_pace(
        self, pace: AudioPace, started_at: float, modality: str, outcome: Outcome
    ) -> None:
        """An answer with sound has ended; one that did not finish has no factor."""
        gaps = self._gaps.labels(modality)
        for gap_s in pace.gaps_s:
            gaps.observe(gap_s)
        self._stalls.labels(modality).observe(pace.stall_s)
        if outcome is Outcome.FINISHED:
            self._rtf.labels(modality).observe(pace.factor(started_at))


class RequestCount:
    """ASGI middleware: counts the POSTs to some endpoints; outside of whatever refuses."""

    def __init__(self, app: ASGIApp, metrics: RequestCounters, endpoints: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        is_http = scope["type"] == "http" and scope["method"] == "POST"
        if not is_http or scope["path"] not in self._endpoints:
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        outcome = Outcome.CANCELLED
        try:
            await self._app(scope, receive, send)
            outcome = state_of(scope).outcome
        except Exception:
            outcome = Outcome.FAILED
            raise
        finally:
            status = state_of(scope).status
            self._metrics.answered(scope["path"], outcome, status, time.monotonic() - started)
