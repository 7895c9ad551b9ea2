"""vLLM's own metrics of the engine in this process."""

from collections.abc import Iterator

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

PREFIX = "vllm:"


class EngineMetrics(Collector):
    """Of the registry of the process, in which vLLM's logger keeps them, those of vLLM."""

    def collect(self) -> Iterator[Metric]:
        """As they are now; none if the engine was told `disable_log_stats`."""
        return (metric for metric in REGISTRY.collect() if metric.name.startswith(PREFIX))
