"""The parts of Grafana's dashboard: queries, panels of them, and rows of panels."""

from collections.abc import Sequence
from typing import NamedTuple

SERVER = 'instance=~"$server"'
QUANTILES = (0.5, 0.99)


class Query(NamedTuple):
    """A query of Prometheus, and the name of each of its lines."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """Lines in one of Grafana's units, with a sentence for operators.

    A `limit` is drawn as a line; the panel is red above it, a `stat` below it.
    """

    title: str
    about: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    limit: float | None = None


class Row(NamedTuple):
    """Panels below a heading."""

    title: str
    panels: Sequence[Panel]


def legend_of(labels: str) -> str:
    """Return the values of these labels."""
    return " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))


def now(metric: str, labels: str, note: str = "") -> Query:
    """Return a gauge, or a counter as it is."""
    return Query(f"{metric}{{{SERVER}}}", f"{legend_of(labels)} {note}".strip())


def total(metric: str, note: str) -> Query:
    """Return a gauge of all servers together."""
    return Query(f"sum({metric}{{{SERVER}}})", note)


def per_second(metric: str, labels: str, note: str = "", matching: str = "") -> Query:
    """Return the rate of a counter, of the series that match."""
    rate = f"sum by ({labels}) (rate({metric}{{{SERVER}{matching}}}[$__rate_interval]))"
    return Query(rate, f"{legend_of(labels)} {note}".strip())


def mean(dividend: str, divisor: str, labels: str) -> Query:
    """Return the growth of one counter over the growth of another."""
    above, below = per_second(dividend, labels), per_second(divisor, labels)
    return Query(f"{above.expression} / {below.expression}", f"{legend_of(labels)} mean")


def quantiles(metric: str, labels: str) -> list[Query]:
    """Return the median and the 99th percentile of a histogram."""
    rates = f"sum by (le, {labels}) (rate({metric}_bucket{{{SERVER}}}[$__rate_interval]))"
    return [
        Query(f"histogram_quantile({share}, {rates})", f"{legend_of(labels)} p{share * 100:g}")
        for share in QUANTILES
    ]


def times(title: str, about: str, metric: str, labels: str) -> Panel:
    """Return a panel of a histogram of seconds."""
    return Panel(title, about, "s", quantiles(metric, labels))


def sizes(title: str, about: str, metric: str) -> Panel:
    """Return a panel of a stage's histogram of counts."""
    average = mean(f"{metric}_sum", f"{metric}_count", "stage")
    return Panel(title, about, "none", [average, *quantiles(metric, "stage")[1:]])


def ours(name: str) -> str:
    """Return the whole name of a metric of this server's."""
    return f"omnistage_{name}"
