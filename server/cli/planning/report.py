"""A forecast as tables."""

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from omnistage.bench.metrics import Summary
from omnistage.server.cli.planning.forecast import Forecast
from omnistage.server.cli.planning.layouts import Held, Layout, title

MS = 1000


def plan_report(chosen: Forecast, sessions: int, others: list[Forecast]) -> Group:
    """The layout, its memory, what it would do, what is full first, and where that is from."""
    head = Text(f"{chosen.layout.graph.model}, {title(chosen.layout)}")
    parts = [_memory(chosen.layout), _doing(chosen, sessions), _limits(chosen)]
    if others:
        parts.append(_others([chosen, *others]))
    return Group(head, *parts, *map(Text, notes(chosen)))


def _memory(layout: Layout) -> Table:
    table = Table("GPU", "stages", "GB", "of", title="memory of a cell")
    memory = f"{layout.gpus.kind.memory_gb:g}"
    for gpu, held in layout.held.items():
        total = f"{sum(one.total for one in held):.1f}"
        table.add_row(str(gpu), "\n".join(map(_held, held)), total, memory)
    return table


def _held(one: Held) -> str:
    cache = f", {one.cache:.1f} cache" if one.cache else ""
    return f"{one.stage}: {one.weights:.1f} weights{cache}"


def _doing(forecast: Forecast, sessions: int) -> Table:
    outcome = forecast.at(sessions)
    level, demand = outcome.level, forecast.demand
    asked, metrics, most = forecast.audio_s(sessions), level.metrics, forecast.most_sessions
    table = Table(title=f"{sessions} sessions, of which speech fills {demand.speech:.0%}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("audio s/s asked", f"{asked:.0f}")
    table.add_row("audio s/s at full load", f"{forecast.capacity:.0f}")
    table.add_row("load", f"{asked / forecast.capacity:.0%}")
    table.add_row("TTFP ms, p50, p99", _both(metrics["ttfp_s"], MS, 0))
    table.add_row("RTF, p50, p99", _both(metrics["rtf"], 1, 3))
    table.add_row("longest stall ms, p50, p99", _both(metrics["longest_stall_s"], MS, 0))
    table.add_row("answers with an underrun", f"{level.num_underruns} of {len(level.answered)}")
    table.add_row("sessions at most", str(most))
    table.add_row("GPUs for these sessions", str(_gpus_for(forecast, sessions)))
    table.add_row("$ an audio hour", f"{forecast.price(sessions):.3f}")
    table.add_row("$ with sessions at most", f"{forecast.price(most):.3f}")
    return table


def _gpus_for(forecast: Forecast, sessions: int) -> int:
    return forecast.cells_for(sessions) * forecast.layout.gpus_per_cell


def _both(summary: Summary, factor: float, decimals: int) -> str:
    return ", ".join(f"{one * factor:.{decimals}f}" for one in (summary.p50, summary.p99))


def _limits(forecast: Forecast) -> Table:
    table = Table(title="what of a cell is full first")
    table.add_column("resource")
    table.add_column("full at audio s/s", justify="right")
    for limit in forecast.limits():
        table.add_row(limit.name, f"{limit.full_at:.0f}")
    for name, share in forecast.full.stages.items():
        table.add_row(f"  {name} at work, at full load", f"{share:.0%}")
    return table


def _others(forecasts: list[Forecast]) -> Table:
    table = Table("layout", "form", title="layouts that fit")
    for name in ("audio s/s at full load", "sessions at most"):
        table.add_column(name, justify="right")
    for one in forecasts:
        made = f"{one.capacity:.0f}", str(one.most_sessions)
        table.add_row(title(one.layout), one.layout.form, *made)
    return table


def notes(forecast: Forecast) -> Iterator[str]:
    """What a reader must know of the figures."""
    layout, figures = forecast.layout, forecast.layout.figures
    kind, asked = layout.gpus.kind, figures.answer
    prompt = asked.prompt_tokens + forecast.demand.history
    yield (
        f"An answer: {prompt} tokens of prompt, {asked.text_tokens} of text, "
        f"{figures.audio_s:g} s of sound. Forecast by simulation, not measured."
    )
    demand = forecast.demand
    yield (
        f"Sessions at most: {demand.load:.0%} load, and 99 of 100 answers with a TTFP of "
        f"{demand.ttfp_ms:g} ms and no stall above {demand.stall_ms:g} ms."
    )
    if kind.name == figures.gpu:
        yield f"Steps as on one {figures.gpu}; memory beyond weights and caches is not known."
    else:
        yield (
            f"Measured on {figures.gpu}; on {kind.name} every step is taken to be "
            f"{forecast.factor:.2f} times as long, by memory bandwidth. Nothing was run there."
        )
    for source in figures.sources:
        yield f"- {source.figure}: {source.how}, {source.command} ({source.table})"
