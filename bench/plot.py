"""A run's figures as one SVG file: a panel a metric, levels from left to right."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from omnistage.bench.report import Level, Report

WIDTH, HEIGHT = 300, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 30, 36
COLUMNS = 3
COLORS = {"p50": "#1f77b4", "p95": "#d62728", "": "#2ca02c"}
# Title, metric, factor.
LATENCIES = (
    ("TTFT ms", "ttft_s", 1000.0),
    ("TTFP ms", "ttfp_s", 1000.0),
    ("RTF", "rtf", 1.0),
    ("longest stall ms", "longest_stall_s", 1000.0),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram: values of each line by level; None where a level has none."""

    title: str
    lines: dict[str, list[float | None]]


def panels(levels: Sequence[Level]) -> list[Panel]:
    """Returns what is drawn: the metrics that any level has."""
    made = []
    for title, metric, factor in LATENCIES:
        summaries = [level.metrics.get(metric) for level in levels]
        lines: dict[str, list[float | None]] = {
            "p50": [one.p50 * factor if one else None for one in summaries],
            "p95": [one.p95 * factor if one else None for one in summaries],
        }
        made.append(Panel(title, lines))
    made.append(Panel("requests/s", {"": [level.rates.requests for level in levels]}))
    made.append(Panel("audio s/s", {"": [level.rates.audio_s or None for level in levels]}))
    return [panel for panel in made if _peak(panel) is not None]


def _peak(panel: Panel) -> float | None:
    values = [value for line in panel.lines.values() for value in line if value is not None]
    return max(values, default=None)


def to_svg(report: Report) -> str:
    """The file's text."""
    drawn = panels(report.levels)
    rows = -(-len(drawn) // COLUMNS)
    names = [level.name for level in report.levels]
    axis = "requests/s" if report.levels[0].concurrency is None else "concurrency"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMNS * WIDTH}" '
        f'height="{rows * HEIGHT + 20}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="14">{escape(report.model)}, {escape(report.date)}</text>',
    ]
    for index, panel in enumerate(drawn):
        row, column = divmod(index, COLUMNS)
        parts.append(f'<g transform="translate({column * WIDTH},{row * HEIGHT + 20})">')
        parts += _panel(panel, names, axis)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, names: Sequence[str], axis: str) -> list[str]:
    peak = _peak(panel) or 1.0
    bottom = HEIGHT - BOTTOM
    xs = [_x(index, len(names)) for index in range(len(names))]
    parts = [
        f'<text x="{WIDTH / 2}" y="{TOP - 12}" text-anchor="middle">{panel.title}</text>',
        f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" stroke="black" fill="none"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{axis}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        parts.append(
            f'<text x="{LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{share * peak:.3g}</text>'
        )
    for x, name in zip(xs, names, strict=True):
        label = escape(name.removesuffix(" req/s"))
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{label}</text>')
    for index, (name, values) in enumerate(panel.lines.items()):
        parts += _line(
            name, [(x, v / peak) for x, v in zip(xs, values, strict=True) if v is not None]
        )
        parts.append(
            f'<text x="{LEFT + 8 + 32 * index}" y="{TOP + 2}" fill="{COLORS[name]}">{name}</text>'
        )
    return parts


def _line(name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    places = [(x, _y(share)) for x, share in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return [
        f'<polyline points="{path}" stroke="{COLORS[name]}" fill="none"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLORS[name]}"/>' for x, y in places),
    ]


def _x(index: int, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / count


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP - 8) * share
