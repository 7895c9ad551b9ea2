"""`omnistage bench images`: its options, and what it prints and writes."""

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from omnistage.bench.options import check_place, command_line, numbers, read_object
from omnistage.bench.outcome import keep, outcome

if TYPE_CHECKING:
    from omnistage.bench.images import PictureReport

MS = 1000.0


def images(
    url: Annotated[str, typer.Argument(help="The server's URL.")] = "http://127.0.0.1:8000",
    concurrency: Annotated[
        str, typer.Option(help="How many requests run at once; several levels by commas.")
    ] = "1,4",
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="How many requests a level has in a round. Default: 4 a stream."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="How many rounds there are; in each, every level runs once.")
    ] = 3,
    size: Annotated[
        str | None, typer.Option(help="The images' WIDTHxHEIGHT. Default: the server's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="How many denoising steps. Default: the server's.")
    ] = None,
    extra_body: Annotated[str, typer.Option(help="A JSON object of further body fields.")] = "{}",
    bare: Annotated[
        str | None,
        typer.Option(
            help="A pipeline's folder: also time single requests in turns with bare calls of it."
        ),
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=2, help="How many pairs of a request and a bare call --bare makes.")
    ] = 20,
    api_key: Annotated[
        str | None, typer.Option(help="The API key, sent as a bearer token.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="How many seconds an answer may take.")
    ] = 600,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="The file to write every sample and figure to, .json."),
    ] = None,
) -> None:
    """Load a server with requests for images and measure images/s and latency."""
    from omnistage.bench.images import PicturePlan, measure

    body: dict[str, Any] = {}
    if size is not None:
        body["size"] = size
    if steps is not None:
        body["num_inference_steps"] = steps
    try:
        check_place("--json", json_file, ".json")
        body |= read_object("--extra-body", extra_body)
        levels = numbers("--concurrency", concurrency, int)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    plan = PicturePlan(url, body, levels, requests, rounds, pairs if bare else 0, timeout, api_key)
    make_bare = None
    if bare is not None:
        from omnistage.bench.bare import load_bare

        make_bare = load_bare(bare, body)
    console = Console()
    report = outcome(measure(plan, make_bare, command_line(sys.argv, api_key)))
    show(console, report)
    keep(report, json_file, has_failed=any(level.errors for level in report.levels))


def show(console: Console, report: "PictureReport") -> None:
    """Print the figures."""
    table = Table(title="images/s: median of the rounds and their range")
    for name in (
        "at once",
        "requests",
        "failed",
        "images/s",
        "range",
        "p50 ms",
        "p90 ms",
        "p99 ms",
    ):
        table.add_column(name, justify="right")
    for level in report.levels:
        rates, latency = level.images_per_s, level.latency_s
        times = ("p50", "p90", "p99") if latency is not None else ()
        table.add_row(
            str(level.concurrency),
            str(len(level.samples)),
            str(len(level.errors)),
            f"{statistics.median(rates):.3f}",
            f"{min(rates):.3f} - {max(rates):.3f}",
            *(f"{getattr(latency, name) * MS:.1f}" for name in times),
        )
    console.print(table)
    if report.pairs is not None:
        low, median, high = report.pairs.ratio_quartiles
        served = statistics.median(report.pairs.served_s) * MS
        alone = statistics.median(report.pairs.bare_s) * MS
        console.print(
            f"over the bare pipeline: {median:.3f} (quartiles {low:.3f} - {high:.3f}) in "
            f"{len(report.pairs.bare_s)} pairs; medians {served:.1f} ms and {alone:.1f} ms",
            highlight=False,
            soft_wrap=True,
        )
    for level in report.levels:
        for error in sorted(set(level.errors)):
            console.print(error, markup=False, highlight=False, style="red", soft_wrap=True)
