"""`omnistage bench serve`: its options, and what it prints and writes."""

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from omnistage.bench.commands.options import (
    MODALITIES,
    check_place,
    command_line,
    make_loads,
    read_modalities,
    read_object,
    read_words,
)
from omnistage.bench.commands.outcome import keep, outcome
from omnistage.bench.commands.typed_options import ApiKey, JsonFile, Model, Timeout, Url

if TYPE_CHECKING:
    from omnistage.bench.report import Level, Report

MAX_SEED = 1 << 32


def serve(
    url: Url = "http://127.0.0.1:8000",
    concurrency: Annotated[
        str | None,
        typer.Option(help="How many streams are kept busy; several levels by commas. Default: 1."),
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
            help="How many requests a level has: one number, or one a level by commas. "
            "Default: 4 a stream and at least 16; with --rate, 64."
        ),
    ] = None,
    warmups: Annotated[
        str | None,
        typer.Option(
            help="How many requests are sent before each level and not counted. "
            "Default: 2 a stream; with --rate, 2."
        ),
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="How many random words a prompt has, of about a token each.")
    ] = 72,
    words: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A file of words for the prompts. Default: common English words.",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="How many tokens of text an answer may have.")
    ] = 64,
    modalities: Annotated[
        str, typer.Option(help=f"What to ask for: {' | '.join(MODALITIES)}.")
    ] = "text",
    frames: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many codec frames an answer has, exactly; implies --ignore-eos."
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos", help="Have every answer go on to exactly --max-tokens of text."
        ),
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="The temperature. Default: the server's.")
    ] = None,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline", help="Ask the server where the time went, and print it. Omnistage only."
        ),
    ] = False,
    voice: Annotated[str | None, typer.Option(help="The voice. Default: the server's.")] = None,
    audio_format: Annotated[
        str, typer.Option(help="The audio format: pcm16, wav, or the server's own name of these.")
    ] = "pcm16",
    body: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A JSON file of body fields; {prompt} in its strings is the random prompt.",
        ),
    ] = None,
    extra_body: Annotated[
        str,
        typer.Option(
            help="A JSON object of body fields that override all others; null drops a field."
        ),
    ] = "{}",
    model: Model = None,
    api_key: ApiKey = None,
    seed: Annotated[
        int | None,
        typer.Option(help="The seed of prompts and arrivals. Default: a new one each time."),
    ] = None,
    timeout: Timeout = 600,
    json_file: JsonFile = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="The file to write a trace of all stages to, .json.gz, and print what they "
            "compute at once. Of a server with --profile-folder on this machine; one level."
        ),
    ] = None,
    profile_seconds: Annotated[
        float | None,
        typer.Option(min=0.01, max=60, help="How many seconds stages record. Default: 1."),
    ] = None,
    admin_key_file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="A file with the server's admin key, for --profile. "
            "Default: the variable OMNISTAGE_ADMIN_KEY.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="The file to write diagrams to, .svg.")] = None,
) -> None:
    """Load a server with chat requests and measure its answers."""
    from omnistage.bench.profile.options import make_profiling
    from omnistage.bench.run import Plan, run_plan
    from omnistage.bench.workload import WORDS, PromptWorkload

    chosen_seed = secrets.randbelow(MAX_SEED) if seed is None else seed
    try:
        check_place("--json", json_file, ".json")
        check_place("--plot", plot, ".svg")
        file_fields = {} if body is None else read_object("--body", body.read_text("utf-8"))
        workload = PromptWorkload(
            seed=chosen_seed,
            prompt_words=prompt_tokens,
            max_tokens=max_tokens,
            words=WORDS if words is None else read_words(words),
            modalities=read_modalities(modalities, frames),
            voice=voice,
            audio_format=audio_format,
            frames=frames,
            ignore_eos=ignore_eos,
            temperature=temperature,
            has_timeline=timeline,
            overrides=(file_fields, read_object("--extra-body", extra_body)),
        )
        loads = make_loads(concurrency, rate, requests, warmups, chosen_seed)
        profiling = make_profiling(url, profile, profile_seconds, admin_key_file, len(loads))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    command = command_line(sys.argv, api_key)
    plan = Plan(url, workload, loads, timeout, command, model, api_key, profiling=profiling)
    console = Console()
    report = outcome(run_plan(plan, lambda level: _show(console, level)))
    _finish(console, report, json_file, plot)


def _show(console: Console, level: "Level") -> None:
    from omnistage.bench.profile.table import show_profile
    from omnistage.bench.table import complaints, level_table, rates_line, timeline_table

    console.print(level_table(level))
    console.print(rates_line(level), highlight=False, soft_wrap=True)
    if level.timeline_s:
        console.print(timeline_table(level))
    if level.profile is not None:
        show_profile(console, level.profile)
    for line in complaints(level):
        console.print(line, markup=False, highlight=False, style="red", soft_wrap=True)


def _finish(console: Console, report: "Report", json_file: Path | None, plot: Path | None) -> None:
    from omnistage.bench.plot import to_svg
    from omnistage.bench.table import overview_table

    if len(report.levels) > 1:
        console.print(overview_table(report.levels))
    console.print(f"{report.model} at {report.url}, seed {report.seed}", markup=False)
    if plot is not None:
        plot.write_text(to_svg(report), "utf-8")
    keep(
        report,
        json_file,
        has_failed=any(level.errors or level.no_profile for level in report.levels),
    )
