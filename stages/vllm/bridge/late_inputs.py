"""Inputs of requests that come while they run: values of columns and rows of the stage upstream.

A request knows from the start how long its prompt is, the inputs of every prompt position that
needs nothing from upstream, which positions take a hidden row, and at which position the first
value of the feed goes. All else arrives through the feed, and `available` says how far the leading
positions are complete: a position beyond it is waited for, never filled with zeros. Which columns
and rows there are, a family declares (step_schema.py). A row is kept until it is computed, so an
engine that takes rows must never preempt a request (`refuse_preemption` in connector.py).
"""

import logging
import select
import threading
import time
from collections import OrderedDict

import torch

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ConnectorError, Receiver
from omnistage.connectors.messages import UnknownMessage
from omnistage.stages.messages.edge import Edge
from omnistage.stages.vllm.bridge.request_inputs import RequestInputs
from omnistage.stages.vllm.rows.row_store import RowStore
from omnistage.stages.vllm.step.request_options import LatePrompt
from omnistage.stages.vllm.step.step_schema import ColumnLayout, StepSchema

logger = logging.getLogger(__name__)

MAX_CLOSED = 4096  # ids of ended requests that are remembered
IDLE_S = 0.5  # between two looks of an idle engine's thread
STANDSTILL_S = 5.0  # between two steps: the engine, or its whole machine, did not run
EARLY_S = 30.0  # chunks of a request that the engine does not get within this time are dropped
# The same beside an engine that does not step: it may be idle, or obey a command of many minutes
# with the request in its queue. The longest command may take 600 s unless a graph file says more.
EARLY_IDLE_S = 3600.0


class LateInputs:
    """All requests' late inputs, fed by the receivers of the stage upstream.

    An engine collects them as it steps. One without requests does not step: then a thread takes
    what still comes for requests that ended before their upstream did, or it would keep its credit.
    """

    def __init__(
        self,
        receivers: list[Receiver[Edge]],
        schema: StepSchema,
        engine_dtype: torch.dtype,
        max_model_len: int,
        first_chunk_s: float,
        next_chunk_s: float,
    ) -> None:
        self._receivers = receivers
        self.layout = ColumnLayout(schema.columns)
        self.store = None if schema.rows is None else RowStore(schema.rows, engine_dtype)
        self._max_model_len = max_model_len
        self._limits_s = (first_chunk_s, next_chunk_s)
        self._by_id: dict[str, RequestInputs] = {}
        self._expected: set[str] = set()
        self._early: OrderedDict[str, tuple[float, list[Chunk[Edge]]]] = OrderedDict()
        self._closed: OrderedDict[str, None] = OrderedDict()  # what comes for these is dropped
        self._lock = threading.RLock()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_shut = False
        self._looked_at = time.monotonic()
        self._came = select.poll()
        for receiver in receivers:
            self._came.register(receiver.fileno(), select.POLLIN)
        self._drain = threading.Thread(target=self._run, name="omnistage-late", daemon=True)
        if receivers:
            self._drain.start()

    def _run(self) -> None:
        """Collect while there is no request."""
        poller = select.poll()
        for receiver in self._receivers:
            poller.register(receiver.fileno(), select.POLLIN)
        while not self._is_shut:
            self._is_idle.wait()
            has_come = not self._is_shut and bool(poller.poll(1000 * IDLE_S))
            with self._lock:
                if self._is_idle.is_set() and not self._is_shut:
                    self._take_late(has_come)

    def _take_late(self, has_come: bool) -> None:
        try:
            if has_come:
                self._collect()
        except (ConnectorError, UnknownMessage):
            logger.exception("what came for ended requests could not be taken")
        self._forget_early(EARLY_IDLE_S)

    def _forget_early(self, limit_s: float) -> None:
        """Drop what nobody has asked for in this time; the caller has the lock."""
        now = time.monotonic()
        for request_id, (came_at, _) in list(self._early.items()):
            if now - came_at > limit_s and request_id not in self._expected:
                del self._early[request_id]

    def _note_idle(self) -> None:
        if self._by_id or self._expected:
            self._is_idle.clear()
        else:
            self._is_idle.set()

    def expect(self, request_id: str) -> None:
        """The engine has the request: keep what comes for it until it is opened or closed."""
        with self._lock:
            self._expected.add(request_id)
            self._closed.pop(request_id, None)
            self._note_idle()

    def open(self, request_id: str, prompt: LatePrompt) -> RequestInputs:
        """Inputs of a request; what came before the request did is added now."""
        with self._lock:
            inputs = self._by_id.get(request_id)
            if inputs is None:
                inputs = self._by_id[request_id] = RequestInputs(
                    request_id, prompt, self.layout, self._max_model_len, self.store
                )
                for chunk in self._early.pop(request_id, (0.0, ()))[1]:
                    self._add(inputs, chunk)
            self._note_idle()
        return inputs

    def close(self, request_id: str) -> None:
        """Forget a request that finished or was aborted."""
        with self._lock:
            inputs = self._by_id.pop(request_id, None)
            if inputs is not None:
                inputs.close()
            self._early.pop(request_id, None)
            self._expected.discard(request_id)
            for receiver in self._receivers:
                receiver.forget(request_id)
            self._closed[request_id] = None
            while len(self._closed) > MAX_CLOSED:
                self._closed.popitem(last=False)
            self._note_idle()

    def collect(self) -> None:
        """Take everything that has arrived, without waiting."""
        with self._lock:
            self._collect()

    def _collect(self) -> None:
        for receiver in self._receivers:
            came: list[str] = []
            try:
                while (chunk := receiver.receive()) is not None:
                    came.append(chunk.request_id)
                    self._keep(chunk)
            finally:
                if came:
                    receiver.grant_each(came)

    def _keep(self, chunk: Chunk[Edge]) -> None:
        inputs = self._by_id.get(chunk.request_id)
        if inputs is not None:
            self._add(inputs, chunk)
        elif chunk.request_id not in self._closed:
            new: tuple[float, list[Chunk[Edge]]] = (time.monotonic(), [])
            self._early.setdefault(chunk.request_id, new)[1].append(chunk)

    def _add(self, inputs: RequestInputs, chunk: Chunk[Edge]) -> None:
        """Adds an input; one that does not fit ends its request, not the engine."""
        if inputs.is_refused:
            return
        try:
            inputs.add(chunk)
        except (KeyError, ValueError):
            logger.exception("an input of request %s was refused", inputs.request_id)
            inputs.is_refused = True

    def overdue(self) -> list[str]:
        """Requests whose next input did not come in time; also forgets what nobody asked for."""
        now = time.monotonic()
        pause_s, self._looked_at = now - self._looked_at, now
        with self._lock:
            self._forget_early(EARLY_S)
        if pause_s > STANDSTILL_S:
            for inputs in self._by_id.values():
                inputs.waits_since = min(now, inputs.waits_since + pause_s)
        return [
            request_id
            for request_id, inputs in self._by_id.items()
            if inputs.is_refused
            or (not inputs.has_all and now - inputs.waits_since > self._limits_s[inputs.has_heard])
        ]

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrives at any receiver, at most `timeout_s`."""
        if self._receivers:
            self._came.poll(1000 * timeout_s)

    def shutdown(self) -> None:
        """Close the receivers."""
        self._is_shut = True
        self._is_idle.set()
        if self._drain.is_alive():
            self._drain.join(timeout=5)
        for receiver in self._receivers:
            receiver.close()
