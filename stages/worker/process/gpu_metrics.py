"""Metrics of a stage's GPUs by NVIDIA's driver."""

from collections.abc import Iterator, Sequence
from typing import Any

import pynvml
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LABELS = ("gpu",)


class GpuMetrics(Collector):
    """Memory and use of GPUs, whoever uses them; nothing where there is no driver.

    `gpus` are CUDA's names of them: numbers, or the identifiers of the driver.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        self._handles: dict[str, Any] = {}
        if not gpus:
            return
        try:
            pynvml.nvmlInit()
            self._handles = {name: _handle(name) for name in gpus}
        except pynvml.NVMLError:
            return

    def collect(self) -> Iterator[Metric]:
        """Yields the present values."""
        if not self._handles:
            return
        used = GaugeMetricFamily(
            "omnistage_gpu_memory_used_bytes",
            "Memory in use on a GPU, whoever uses it.",
            labels=LABELS,
        )
        size = GaugeMetricFamily(
            "omnistage_gpu_memory_size_bytes", "Memory that a GPU has.", labels=LABELS
        )
        busy = GaugeMetricFamily(
            "omnistage_gpu_utilization_ratio",
            "Share of the last moments in which a GPU ran some kernel, of anyone.",
            labels=LABELS,
        )
        for name, handle in self._handles.items():
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            used.add_metric([name], memory.used)
            size.add_metric([name], memory.total)
            try:
                rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            except pynvml.NVMLError:
                continue  # a slice of a GPU does not tell it
            busy.add_metric([name], rates.gpu / 100)
        yield from (used, size, busy)


def _handle(name: str) -> Any:
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)
