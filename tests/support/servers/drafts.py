"""What vLLM counts of the drafts of its engines in this process, or of a server's."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Metric

NUM_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
NUM_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True)
class Drafted:
    """Tokens."""

    accepted: int
    rejected: int

    @classmethod
    def of(cls, metrics: Iterable[Metric], **labels: str) -> "Drafted":
        """Of the samples with these labels."""
        counts = {NUM_DRAFTED: 0, NUM_ACCEPTED: 0}
        for sample in (sample for metric in metrics for sample in metric.samples):
            if sample.name in counts and labels.items() <= sample.labels.items():
                counts[sample.name] += int(sample.value)
        accepted = counts[NUM_ACCEPTED]
        return cls(accepted, counts[NUM_DRAFTED] - accepted)
