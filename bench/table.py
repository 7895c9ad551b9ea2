"""A run's figures for a terminal."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rich import box
from rich.table import Table

from omnistage.bench.metrics import Summary
from omnistage.bench.report import Level, Loaded

MS, ONE = 1000.0, 1.0


class MetricRow(NamedTuple):
    """How a metric is shown."""

    metric: str
    title: str
    factor: float
    decimals: int

    def cell(self, value: float) -> str:
        """A number of it."""
        return f"{value * self.factor:.{self.decimals}f}"


ROWS = (
    MetricRow("ttft_s", "TTFT ms", MS, 1),
    MetricRow("ttfp_s", "TTFP ms", MS, 1),
    MetricRow("e2e_s", "end to end ms", MS, 1),
    MetricRow("rtf", "RTF", ONE, 3),
    MetricRow("stall_s", "player's stall ms", MS, 1),
    MetricRow("longest_stall_s", "longest stall ms", MS, 1),
    MetricRow("packet_gap_s", "audio gap ms", MS, 1),
    MetricRow("text_gap_s", "text gap ms", MS, 1),
    MetricRow("audio_s", "audio s", ONE, 2),
    MetricRow("prompt_tokens", "prompt tokens", ONE, 1),
    MetricRow("text_tokens", "text tokens", ONE, 1),
)
OVERVIEW = (
    MetricRow("ttft_s", "TTFT ms", MS, 0),
    MetricRow("ttfp_s", "TTFP ms", MS, 0),
    MetricRow("rtf", "RTF", ONE, 3),
    MetricRow("longest_stall_s", "stall ms", MS, 0),
)
RATES = {
    "requests": "requests/s",
    "text_tokens": "text tokens/s",
    "completion_tokens": "all tokens/s",
    "audio_s": "audio s/s",
    "images": "images/s",
}
OVERVIEW_RATES = {
    "requests": "req/s",
    "text_tokens": "tok/s",
    "audio_s": "audio s/s",
    "images": "images/s",
}
LATE_CLIENT_S = 0.005
SUSPICIOUS_REPEAT = 8


def load_of(level: Loaded) -> str:
    """The load in words."""
    return f"concurrency {level.name}" if level.concurrency is not None else level.name


def level_table(level: Level) -> Table:
    """Every metric of one level."""
    count = f"{len(level.samples)} requests, {level.num_failed} failed"
    if level.rate is not None:
        count += f", {level.most_in_flight} in flight at most"
    table = Table(title=f"{load_of(level)}: {count}, {level.duration_s:.1f} s")
    table.add_column("metric")
    for name in Summary.model_fields:
        table.add_column(name, justify="right")
    for row in ROWS:
        if row.metric in level.metrics:
            values = level.metrics[row.metric].model_dump().values()
            table.add_row(row.title, *(row.cell(value) for value in values))
    return table


def timeline_table(level: Level) -> Table:
    """Where the time to the first packet went, by the server's stamps; means."""
    table = Table(title=f"{load_of(level)}: to the first packet, means")
    for name in ("from", "to", "ms", "at ms"):
        table.add_column(name, justify="right" if name.endswith("ms") else "left")
    marks = list(level.timeline_s.items())
    for (first, start_s), (second, end_s) in pairwise(marks):
        table.add_row(first, second, f"{(end_s - start_s) * MS:.1f}", f"{end_s * MS:.1f}")
    seen = level.metrics["ttfp_s"].mean
    rest = seen - marks[-1][1]
    table.add_row(marks[-1][0], "client", f"{rest * MS:.1f}", f"{seen * MS:.1f}")
    return table


def rates_line(level: Level) -> str:
    """Returns what the level added up to; what it made nothing of is left out."""
    rates = {title: _rate(level, name) for name, title in RATES.items()}
    return ", ".join(f"{rate:.2f} {title}" for title, rate in rates.items() if rate)


def overview_table(levels: Sequence[Level]) -> Table:
    """The levels beside each other; what none of them has is left out."""
    table = Table(
        title="p50/p95; stall is a player's longest, tokens are the text's",
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("rate" if levels[0].concurrency is None else "level")
    rows = [row for row in OVERVIEW if any(row.metric in level.metrics for level in levels)]
    rates = [name for name in OVERVIEW_RATES if any(_rate(level, name) for level in levels)]
    for title in (*(row.title for row in rows), *(OVERVIEW_RATES[name] for name in rates)):
        table.add_column(title, justify="right")
    for level in levels:
        cells = [_cell(row, level.metrics.get(row.metric)) for row in rows]
        table.add_row(level.name, *cells, *(f"{_rate(level, name):.2f}" for name in rates))
    return table


def _rate(level: Level, name: str) -> float:
    return float(getattr(level.rates, name))


def _cell(row: MetricRow, summary: Summary | None) -> str:
    return f"{row.cell(summary.p50)}/{row.cell(summary.p95)}" if summary else ""


def behind(level: Loaded) -> str:
    """Returns what is said of a rate whose queue grew. By chance it may have."""
    return (
        f"the server may not keep up with {level.name}: its queue grew, so more requests would "
        "have taken longer"
    )


def complaints(level: Level) -> list[str]:
    """Returns what a reader of the figures must know."""
    counted = Counter(level.errors)
    lines = [f"{count} failed: {message}" for message, count in counted.most_common()]
    if level.no_profile:
        lines.append(level.no_profile)
    repeating = [one for one in level.answered if one.longest_repeat >= SUSPICIOUS_REPEAT]
    if repeating:
        lines.append(
            f"{len(repeating)} of {len(level.answered)} answers repeat one token "
            f"{SUSPICIOUS_REPEAT} times and more, as a model does whose numbers are NaN: "
            "these figures may mean nothing"
        )
    if level.queue_grew:
        lines.append(behind(level))
    lag = level.client_lag_s
    if lag is not None and lag.p95 > LATE_CLIENT_S:
        late = f"{lag.p95 * MS:.0f} ms late (p95), with {level.client_cpu:.0%} of a core"
        lines.append(f"the client woke {late}: that is in these figures")
    return lines
