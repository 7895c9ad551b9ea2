"""`omnistage bench images`: its options, and what it prints and writes."""

import secrets
import statistics
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from omnistage.bench.commands.command import MAX_SEED
from omnistage.bench.commands.options import check_place, command_line, make_loads, read_object
from omnistage.bench.commands.outcome import keep, outcome
from omnistage.bench.commands.typed_options import ApiKey, JsonFile, Timeout, Url

if TYPE_CHECKING:
    from omnistage.bench.images import PictureReport

MS = 1000.0


def images(
    url: Url = "http://127.0.0.1:8000",
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="How many streams are kept busy; several levels by commas. Default: 1,4."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="In place of --concurrency: requests a second, as a Poisson process; "
            "several levels by commas."
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            help="How many requests a level has in a round: one number, or one a level by commas. "
            "Default: 4 a stream; with --rate, 64."
        ),
    ] = None,
    warmups: Annotated[
        str | None,
        typer.Option(
            help="How many requests are sent for each level before the rounds and not counted. "
            "Default: 2 a stream; with --rate, 2."
        ),
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
    api_key: ApiKey = None,
    seed: Annotated[
        int | None,
        typer.Option(help="The seed of arrivals. Default: a new one each time."),
    ] = None,
    timeout: Timeout = 600,
    json_file: JsonFile = None,
) -> None:
    """Load a server with requests for images and measure images/s and latency."""
    from omnistage.bench.images import PicturePlan, measure

    chosen_seed = secrets.randbelow(MAX_SEED) if seed is None else seed
    if rate is None and concurrency is None:
        concurrency = "1,4"
    body: dict[str, Any] = {}
    if size is not None:
        body["size"] = size
    if steps is not None:
        body["num_inference_steps"] = steps
    try:
        check_place("--json", json_file, ".json")
        body |= read_object("--extra-body", extra_body)
        loads = make_loads(concurrency, rate, requests, warmups, chosen_seed, min_requests=1)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    num_pairs = pairs if bare else 0
    plan = PicturePlan(url, body, loads, chosen_seed, rounds, num_pairs, timeout, api_key)
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
    from omnistage.bench.table import behind

    table = Table(
        title="images/s: median of the rounds and their range",
        box=box.SIMPLE,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for name in (
        "streams" if report.levels[0].rate is None else "req/s",
        "sent",
        "failed",
        "in flight",
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
            f"{level.concurrency if level.rate is None else level.rate:g}",
            str(len(level.samples)),
            str(level.num_failed),
            str(level.most_in_flight),
            f"{statistics.median(rates):.3f}",
            f"{min(rates):.3f}-{max(rates):.3f}",
            *(f"{getattr(latency, name) * MS:.0f}" for name in times),
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
        lines = sorted(set(level.errors))
        for line in [*lines, behind(level)] if level.queue_grew else lines:
            console.print(line, markup=False, highlight=False, style="red", soft_wrap=True)
