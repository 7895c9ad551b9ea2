"""Levels and a report with figures that are exact in binary."""

from omnistage.bench.metrics import Packet, summarize
from omnistage.bench.report import Level, Report, Sample

SPOKEN = Sample(
    number=0,
    start_s=0.0,
    end_s=2.0,
    text_arrivals_s=(0.125, 0.25),
    packets=(Packet(0.5, 1.0), Packet(1.75, 3.0)),
    prompt_tokens=81,
    completion_tokens=66,
    text_tokens=16,
)
FAILED = Sample(number=1, start_s=0.0, end_s=1.0, error="no slot")


def level(concurrency: int, *samples: Sample, lag_s: float = 0.0) -> Level:
    return Level(
        concurrency=concurrency,
        duration_s=2.0,
        client_cpu=0.5,
        client_lag_s=summarize([lag_s]),
        samples=samples,
    )


def report(*levels: Level) -> Report:
    return Report(
        date="2026-01-02", command="c", omnistage="1", url="u", model="<m>", seed=0, levels=levels
    )
