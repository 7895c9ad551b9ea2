"""`omnistage bench realtime`: its options, and what it prints and writes."""

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from omnistage.bench.commands.command import MAX_SEED
from omnistage.bench.commands.options import check_place, command_line, numbers, read_object
from omnistage.bench.commands.outcome import keep, outcome
from omnistage.bench.commands.typed_options import ApiKey, JsonFile, Model, Timeout, Url

if TYPE_CHECKING:
    from omnistage.bench.metrics import Summary
    from omnistage.bench.realtime.report import SessionsLevel

MS = 1000.0


def realtime(
    url: Url = "http://127.0.0.1:8000",
    sessions: Annotated[
        str, typer.Option(help="How many sessions talk at once; several levels by commas.")
    ] = "1",
    turns: Annotated[int, typer.Option(min=1, help="How many turns a session has.")] = 5,
    audio: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A recording that is spoken, in any format; several are taken in turns. "
            "Default: a synthesized voice.",
        ),
    ] = None,
    speech_seconds: Annotated[
        float, typer.Option(min=0.2, help="How long the synthesized voice speaks in a turn.")
    ] = 2.0,
    silence_ms: Annotated[
        int, typer.Option(min=0, help="How much silence ends a turn: silence_duration_ms.")
    ] = 500,
    false_ends: Annotated[
        float, typer.Option(min=0, max=1, help="The share of turns with a pause in their middle.")
    ] = 0,
    pause_ms: Annotated[
        int, typer.Option(min=1, help="How long that pause is; shorter than --silence-ms.")
    ] = 300,
    interruptions: Annotated[
        float,
        typer.Option(min=0, max=1, help="The share of turns that interrupt the answer before."),
    ] = 0,
    extra_session: Annotated[
        str, typer.Option(help="A JSON object of further fields of session.update.")
    ] = "{}",
    model: Model = None,
    api_key: ApiKey = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed of voices and turns. Default: a new one each time.")
    ] = None,
    timeout: Timeout = 600,
    json_file: JsonFile = None,
) -> None:
    """Talk to /v1/realtime in real time, and measure how soon it answers and stops."""
    from omnistage.bench.realtime.run import SessionsPlan, run_sessions
    from omnistage.bench.realtime.voice import Script, read

    chosen_seed = secrets.randbelow(MAX_SEED) if seed is None else seed
    try:
        check_place("--json", json_file, ".json")
        levels = tuple(numbers("--sessions", sessions, int))
        if false_ends and pause_ms >= silence_ms:
            raise ValueError(f"--pause-ms {pause_ms} ends a turn; --silence-ms is {silence_ms}")
        fields = read_object("--extra-session", extra_session)
        recordings = tuple(read(path) for path in audio or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    script = Script(
        turns, chosen_seed, speech_seconds, recordings, false_ends, pause_ms / MS, interruptions
    )
    detection = {"type": "server_vad", "silence_duration_ms": silence_ms}
    session: dict[str, object] = {
        "type": "realtime",
        "audio": {"input": {"turn_detection": detection}},
        **fields,
    }
    command = command_line(sys.argv, api_key)
    plan = SessionsPlan(url, levels, script, session, timeout, model, api_key, command)
    console = Console()
    report = outcome(run_sessions(plan, lambda level: _show(console, level)))
    console.print(overview(report.levels))
    console.print(f"{report.model} at {report.url}, seed {report.seed}", markup=False)
    has_failed = any(level.errors or level.num_late_deltas for level in report.levels)
    keep(report, json_file, has_failed=has_failed)


def _show(console: Console, level: "SessionsLevel") -> None:
    """Print when the events of a turn came, and the errors."""
    table = Table(title=f"{level.sessions} sessions: after the last sample of speech, ms")
    for name in ("event", "p50", "p95"):
        table.add_column(name, justify="left" if name == "event" else "right")
    for name, summary in level.timeline_s.items():
        table.add_row(name.removesuffix("_s").replace("_", " "), *_ms(summary))
    console.print(table)
    if level.ahead:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(level.ahead.items()))
        console.print(f"made ahead: {counts}", highlight=False)
    for line in sorted(set(level.errors)):
        console.print(line, markup=False, highlight=False, style="red", soft_wrap=True)


def overview(levels: "tuple[SessionsLevel, ...]") -> Table:
    """Make a table with a line a level."""
    table = Table(title="first sound after the end was decided, and after the last sample, ms")
    for name in ("sessions", "turns", "failed", "decided p50", "p95", "spoken p50", "p95"):
        table.add_column(name, justify="right")
    for name in ("barge-in p50", "p95", "late", "audio s/s"):
        table.add_column(name, justify="right")
    for level in levels:
        table.add_row(
            str(level.sessions),
            str(len(level.turns)),
            str(len(level.errors)),
            *_ms(level.decided_to_sound_s),
            *_ms(level.spoken_to_sound_s),
            *_ms(level.barge_in_s),
            str(level.num_late_deltas),
            f"{level.audio_rate:.2f}",
        )
    return table


def _ms(summary: "Summary | None") -> tuple[str, str]:
    if summary is None:
        return "", ""
    return f"{summary.p50 * MS:.0f}", f"{summary.p95 * MS:.0f}"
