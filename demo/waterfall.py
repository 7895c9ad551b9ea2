"""The times of one answer, drawn: figures, and the stages' stamps as a waterfall."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from omnistage.demo.timing import Timing

ROW_PX, TEXT_PX, BAR_PX = 38, 14, 10
# Of equal contrast on light and dark; stages take them in the order of their first stamps.
COLORS = ("#3b82f6", "#d97706", "#10a37f", "#c0529c", "#8b6fe8", "#7d8590")
PAGE = "page"
EMPTY = '<p class="os-hint">Timings appear after the first answer.</p>'


@dataclass(frozen=True, slots=True)
class Mark:
    """One stamp of the server: what a stage reached, ms after the request was read."""

    stage: str
    event: str
    ms: float


@dataclass(frozen=True, slots=True)
class Span:
    """The time between two stamps; it is named by how it ended."""

    stage: str
    event: str
    start_ms: float
    end_ms: float


def spans(marks: Sequence[Mark]) -> list[Span]:
    """The way to the first sound or text, one span after the other."""
    ordered = sorted(marks, key=lambda mark: mark.ms)
    return [
        Span(second.stage, second.event, first.ms, second.ms) for first, second in pairwise(ordered)
    ]


def with_page(marks: Sequence[Mark], timing: Timing) -> list[Mark]:
    """The server's stamps, and when the page had what the last of them sent."""
    first_s = timing.first_text_s if timing.first_sound_s is None else timing.first_sound_s
    if not marks or first_s is None or 1e3 * first_s < max(mark.ms for mark in marks):
        return list(marks)
    event = "first_text" if timing.first_sound_s is None else "first_audio"
    return [*marks, Mark(PAGE, event, 1e3 * first_s)]


def waterfall_svg(marks: Sequence[Mark]) -> str:
    """A row a span; as wide as its place, in the text's own colour."""
    drawn = spans(marks)
    if not drawn:
        return ""
    total_ms = drawn[-1].end_ms or 1.0
    stages = list(dict.fromkeys(span.stage for span in drawn))
    colors = {stage: COLORS[index % len(COLORS)] for index, stage in enumerate(stages)}
    rows = "".join(
        row
        for index, span in enumerate(drawn)
        for row in _row(span, index * ROW_PX, total_ms, colors[span.stage])
    )
    label = "; ".join(f"{span.stage} {span.event} at {span.end_ms:.0f} ms" for span in drawn)
    return (
        f'<svg class="os-waterfall" role="img" aria-label="{_attribute(label)}" width="100%" '
        f'height="{len(drawn) * ROW_PX}" xmlns="http://www.w3.org/2000/svg">{rows}</svg>'
    )


def _row(span: Span, top: int, total_ms: float, color: str) -> Iterator[str]:
    start, width = (100 * ms / total_ms for ms in (span.start_ms, span.end_ms - span.start_ms))
    baseline, bar = top + TEXT_PX, top + TEXT_PX + 6
    name = escape(f"{span.stage} {span.event}".replace("_", " "))
    yield f'<text x="0" y="{baseline}">{name}</text>'
    yield f'<text x="100%" y="{baseline}" text-anchor="end">{length(span)}</text>'
    yield f'<rect class="os-track" x="0" y="{bar}" width="100%" height="{BAR_PX}" rx="3"/>'
    yield (
        f'<rect x="{start:.2f}%" y="{bar}" width="{max(width, 0.4):.2f}%" height="{BAR_PX}" '
        f'rx="3" fill="{color}"/>'
    )


def length(span: Span) -> str:
    """How long it took and when it was over."""
    return f"+{span.end_ms - span.start_ms:.1f} ms, at {span.end_ms:.1f}"


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def figures(timing: Timing) -> list[tuple[str, str, str]]:
    """Short names, values and meanings of what is known."""
    known: list[tuple[str, str, str, float | None, float, str]] = [
        ("TTFT", "ms", "time to the first text", timing.first_text_s, 1e3, ".0f"),
        ("TTFP", "ms", "time to the first packet of audio", timing.first_sound_s, 1e3, ".0f"),
        (
            "RTF",
            "",
            "time of the answer over the length of its audio, below 1 is faster than real time",
            timing.rtf,
            1,
            ".2f",
        ),
        (
            "First image",
            "ms",
            "time to the first preview or image",
            timing.first_image_s,
            1e3,
            ".0f",
        ),
        ("Whole answer", "s", "time to the end of the answer", timing.ended_s, 1, ".2f"),
    ]
    return [
        (name, f"{value * factor:{form}} {unit}".strip(), meaning)
        for name, unit, meaning, value, factor, form in known
        if value is not None
    ]


def times_html(timing: Timing, marks: Sequence[Mark] = ()) -> str:
    """The panel."""
    cells = "".join(
        f'<div title="{_attribute(meaning)}"><dt>{name}</dt><dd>{value}</dd></div>'
        for name, value, meaning in figures(timing)
    )
    meanings = "; ".join(f"{name}: {meaning}" for name, _, meaning in figures(timing))
    drawn = waterfall_svg(with_page(marks, timing))
    legend = f'<p class="os-legend">{escape(meanings)}.</p>'
    return f'<dl class="os-figures">{cells}</dl>{legend}{drawn}' if cells else EMPTY
