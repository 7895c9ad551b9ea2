"""vLLM's metrics among those of a process."""

from prometheus_client import REGISTRY, Counter
from support.repository.metrics_docs import families_in, rendered

from omnistage.stages.vllm.engine_stage import EngineMetrics


def test_only_what_is_vllms_is_taken_and_keeps_its_name() -> None:
    ours = Counter("vllm:test_metrics_tokens", "Tokens.", ["engine"])
    other = Counter("test_metrics_other", "Something else.")
    try:
        ours.labels("0").inc(2)
        found = {family.name: family.samples for family in families_in(rendered(EngineMetrics()))}
        assert found.keys() >= {"vllm:test_metrics_tokens"}
        assert all(name.startswith("vllm:") for name in found)
        (sample,) = found["vllm:test_metrics_tokens"]
        assert sample.labels == {"engine": "0", "stage": "one", "replica": "0"}
        assert sample.value == 2
    finally:
        REGISTRY.unregister(ours)
        REGISTRY.unregister(other)
