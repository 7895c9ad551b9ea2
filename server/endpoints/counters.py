"""Counts what one app has answered and how its stages are, for Prometheus."""

import time
from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from omnistage.server.http.state import state_of
from omnistage.server.outcome import Outcome
from omnistage.server.runtime.flight import Flight
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.stage_link import StageState

SECONDS = (
    *(0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0),
    *(5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the series


class Metrics:
    """The counts of one app, in a registry of its own; none is kept for each token."""

    def __init__(self, runtime: Runtime) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Present(runtime))
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
        self._tokens_in = self._counter("prompt_tokens", "Tokens of prompts.", "modality")
        self._tokens_out = self._counter("generation_tokens", "Tokens of texts.", "modality")
        self._audio = self._counter("audio_seconds", "Sound that was made.", "modality")
        self._pictures = self._counter("pictures", "Pictures, of videos frames.", "modality")
        runtime.flights.watch(self._ended)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"omnistage_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, *labels: str) -> Histogram:
        return Histogram(
            f"omnistage_{name}", about, labels, registry=self.registry, buckets=SECONDS
        )

    def answered(self, endpoint: str, outcome: Outcome, status: int | None, seconds: float) -> None:
        """An HTTP request has ended; without a status if nothing was sent."""
        self._requests.labels(endpoint, outcome, status or "").inc()
        if outcome is Outcome.FINISHED:
            self._latency.labels(endpoint).observe(seconds)

    def _ended(self, flight: Flight) -> None:
        """A request has left the graph."""
        modality = "+".join(flight.request.outputs)
        self._answers.labels(modality, flight.outcome).inc()
        for kind, first in (("text", self._first_token), ("audio", self._first_audio)):
            if kind in flight.first_at:
                first.labels(modality).observe(flight.first_at[kind] - flight.started_at)
        for counter, count in (
            (self._tokens_in, flight.num_tokens_in),
            (self._tokens_out, flight.num_tokens_out),
            (self._audio, flight.audio_s),
            (self._pictures, flight.num_images),
        ):
            if count:
                counter.labels(modality).inc(count)


class Present(Collector):
    """How many requests there are and how the stages are, looked up when it is asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """The gauges, and how often stages were started again."""
        running, waiting = self._runtime.flights.num_running, self._runtime.flights.num_waiting
        name = "omnistage_num_requests_running"
        yield GaugeMetricFamily(name, "Requests that have an output.", running)
        name = "omnistage_num_requests_waiting"
        yield GaugeMetricFamily(name, "Requests that have none yet.", waiting)
        labels = ["stage"]
        up = GaugeMetricFamily("omnistage_stage_up", "Whether it is ready.", labels=labels)
        name = "omnistage_stage_requests_running"
        tasks = GaugeMetricFamily(name, "Requests in a stage.", labels=labels)
        name = "omnistage_stage_requests_waiting"
        seats = GaugeMetricFamily(name, "Requests waiting for a seat.", labels=labels)
        name = "omnistage_stage_nan_steps"
        nans = CounterMetricFamily(name, "Steps with a NaN among the logits.", labels=labels)
        name = "omnistage_stage_restarts"
        restarts = CounterMetricFamily(name, "How often it was started again.", labels=labels)
        for stage, link in self._runtime.fleet.stages.items():
            up.add_metric([stage], link.record.state is StageState.READY)
            tasks.add_metric([stage], link.record.counters["running"])
            seats.add_metric([stage], link.record.counters["waiting"])
            nans.add_metric([stage], link.record.counters["nan_steps"])
            restarts.add_metric([stage], link.record.generation - 1)
        yield from (up, tasks, seats, nans, restarts)


class RequestCount:
    """ASGI middleware: counts the POSTs to some endpoints; outside of whatever refuses."""

    def __init__(self, app: ASGIApp, metrics: Metrics, endpoints: Collection[str]) -> None:
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
