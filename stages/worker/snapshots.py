"""Measurements of a stage's process, sent to the gateway at intervals by a thread."""

import logging
import threading
import time
from collections.abc import Iterable, Sequence

from prometheus_client.registry import Collector

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChannelClosed, Sender
from omnistage.stages.messages.families import MetricFamily, families_of, stage_labels
from omnistage.stages.messages.to_gateway import ABOUT_ITSELF, Metrics

logger = logging.getLogger("omnistage.stage")

INTERVAL_S = 1.0
CLOSE_S = 2.0  # a collector that hangs keeps no process from ending
MAX_CHARACTERS = 1 << 20  # of one snapshot; an engine of vLLM's has a tenth of that


class Snapshots:
    """A thread that renders and sends: neither the event loop nor an engine waits for it.

    One snapshot is sent a second, if the gateway has taken those before. A family with which it
    would be too long is left out.
    """

    def __init__(self, name: str, collectors: Sequence[Collector], outputs: Sender) -> None:
        self._labels = stage_labels(name)
        self._collectors = collectors
        self._outputs = outputs
        self._left_out: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omnistage-metrics", daemon=True)

    def start(self) -> None:
        """Send the first one, and go on."""
        self._thread.start()

    def close(self) -> None:
        """Send no more."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._send()
            except ChannelClosed:
                return
            except Exception:
                logger.exception("the metrics of this stage could not be sent")
            self._closing.wait(INTERVAL_S)

    def _send(self) -> None:
        if self._outputs.credit(ABOUT_ITSELF) > 0:
            self._outputs.send(Chunk(ABOUT_ITSELF, Metrics(self._bounded(self._rendered()))))

    def _rendered(self) -> Iterable[MetricFamily]:
        for collector in self._collectors:
            for family in families_of(collector, self._labels):
                yield family
                time.sleep(0)  # the event loop goes on between two families

    def _bounded(self, families: Iterable[MetricFamily]) -> list[MetricFamily]:
        kept, room = [], MAX_CHARACTERS
        for family in families:
            if family.num_characters <= room:
                kept.append(family)
                room -= family.num_characters
            elif family.name not in self._left_out:
                self._left_out.add(family.name)
                logger.warning("%s is not at /metrics: it has too many series", family.name)
        return kept
