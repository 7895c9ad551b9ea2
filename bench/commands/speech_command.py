"""`omnistage bench speech`: its options, and what it prints and writes."""

import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from omnistage.bench.commands.command import MAX_SEED
from omnistage.bench.commands.options import check_place, command_line, make_loads, read_object
from omnistage.bench.commands.outcome import keep, outcome
from omnistage.bench.commands.typed_options import ApiKey, JsonFile, Model, Timeout, Url

if TYPE_CHECKING:
    from omnistage.bench.report import Level

MS = 1000.0


def speech(
    url: Url = "http://127.0.0.1:8000",
    rate: Annotated[
        str | None,
        typer.Option(
            help="Requests a second, as a Poisson process; several levels by commas. Default: 1."
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(help="In place of --rate: how many streams are kept busy, by commas."),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            help="How many requests a level has: one number, or one a level by commas. "
            "Default: 64, or 4 a stream and at least 16."
        ),
    ] = None,
    warmups: Annotated[
        str | None,
        typer.Option(help="How many requests are sent before each level and not counted."),
    ] = None,
    words: Annotated[int, typer.Option(min=1, help="How many random words a text has.")] = 30,
    frames: Annotated[
        int | None,
        typer.Option(min=1, help="How many codec frames an answer has, exactly. Omnistage only."),
    ] = None,
    voice: Annotated[str | None, typer.Option(help="The voice. Default: the server's.")] = None,
    extra_body: Annotated[
        str,
        typer.Option(help="A JSON object of body fields that override all others; null drops one."),
    ] = "{}",
    model: Model = None,
    api_key: ApiKey = None,
    seed: Annotated[
        int | None,
        typer.Option(help="The seed of texts and arrivals. Default: a new one each time."),
    ] = None,
    timeout: Timeout = 600,
    json_file: JsonFile = None,
) -> None:
    """Have texts spoken, and measure the first sound and whether a player ran dry."""
    from omnistage.bench.run import Plan, run_plan
    from omnistage.bench.speech import SpeechClient, Texts

    chosen_seed = secrets.randbelow(MAX_SEED) if seed is None else seed
    if rate is None and concurrency is None:
        rate = "1"
    try:
        check_place("--json", json_file, ".json")
        texts = Texts(
            chosen_seed, words, voice, frames, overrides=(read_object("--extra-body", extra_body),)
        )
        loads = make_loads(concurrency, rate, requests, warmups, chosen_seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    command = command_line(sys.argv, api_key)
    plan = Plan(url, texts, loads, timeout, command, model, api_key, SpeechClient, from_plan=True)
    console = Console()
    report = outcome(run_plan(plan, lambda level: _tell(console, level)))
    console.print(overview(report.levels))
    console.print(f"{report.model} at {report.url}, seed {report.seed}", markup=False)
    has_failed = any(level.errors or level.num_underruns for level in report.levels)
    keep(report, json_file, has_failed=has_failed)


def _tell(console: Console, level: "Level") -> None:
    """Prints warnings about a level as soon as it is over."""
    from omnistage.bench.table import complaints, load_of

    console.print(f"{load_of(level)}: {len(level.samples)} requests, {level.duration_s:.1f} s")
    for line in complaints(level):
        console.print(line, markup=False, highlight=False, style="red", soft_wrap=True)


def overview(levels: "tuple[Level, ...]") -> Table:
    """A line a level; an underrun is a failure of its own."""
    table = Table(title="first sound after the planned arrival, and what a player met")
    for name in ("load", "requests", "failed", "underruns", "p50 ms", "p95 ms", "p99 ms", "RTF"):
        table.add_column(name, justify="right")
    table.add_column("audio s/s", justify="right")
    for level in levels:
        ttfp, rtf = level.metrics.get("ttfp_s"), level.metrics.get("rtf")
        times = [""] * 3 if ttfp is None else [_ms(ttfp.p50), _ms(ttfp.p95), _ms(ttfp.p99)]
        table.add_row(
            level.name,
            str(len(level.samples)),
            str(level.num_failed),
            str(level.num_underruns),
            *times,
            "" if rtf is None else f"{rtf.p50:.3f}",
            f"{level.rates.audio_s:.1f}",
        )
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * MS:.1f}"
