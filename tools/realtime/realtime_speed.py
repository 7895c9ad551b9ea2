"""`make realtime-speed`: sessions of /v1/realtime over Qwen3-Omni at its real size on one GPU.

The folder has no weights: they are dummy ones. The graph is served once for each of `--ahead`
(`A/H`: what --answer-ahead and --history-ahead are). Each server is compared first and again at its
end: sessions speak questions of `--speech-seconds`, two turns each, and a chat with the same
messages must give the same text, greedily. Bfloat16 rounds differently where a cache was read, so
texts may part; then the chat's likeliest token there may be no more than GAP_NATS above the
session's. Prompts have as many tokens, and no stage saw a NaN. Between, `omnistage bench realtime`
measures levels `SESSIONSxTURNS`, and with `--barge-ins` a session each of whose turns interrupts
the answer before it. Its client truncates what it did not play; most answers are whole by then.

A server whose texts are others makes the exit code 1, and its tables are not printed. `--tiny` runs
all on a CPU.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from realtime_texts import INSTRUCTIONS, compare
from rich.console import Console
from rich.table import Table
from support.printing import say
from support.servers.server import TinyServer, mps_option, running_server

from omnistage.bench.metrics import summarize
from omnistage.bench.realtime.report import SessionsLevel, SessionsReport, TurnSample
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

SILENCE_MS = 500
MS = 1000.0
BARGE_INS = ("--interruptions", "1")


def bench(
    server: TinyServer, path: Path, level: str, asked: argparse.Namespace, *more: str
) -> SessionsLevel:
    """Run `omnistage bench realtime` at `SESSIONSxTURNS`."""
    sessions, _, turns = level.partition("x")
    session = {"instructions": INSTRUCTIONS, "max_output_tokens": asked.tokens}
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "realtime", server.url]
    command += ["--sessions", sessions, "--turns", turns, "--seed", "1", "--json", str(path)]
    command += [
        "--speech-seconds",
        str(asked.speech_seconds),
        "--silence-ms",
        str(SILENCE_MS),
        *more,
    ]
    command += ["--extra-session", json.dumps(session)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        say(f"{level}: FAILED: {done.stdout[-2000:]} {done.stderr[-1000:]}")
    report = SessionsReport.model_validate_json(path.read_text())
    return report.levels[0]


def waits(turns: Sequence[TurnSample]) -> list[str]:
    """How many turns, and p50 and p95 of the first sound after two events, ms."""
    row = [str(len(turns))]
    for begin in ("decided_s", "spoken_s"):
        pairs = [(getattr(one, begin), one.first_sound_s) for one in turns]
        summary = summarize(to - of for of, to in pairs if of is not None and to is not None)
        row += (
            ["", ""] if summary is None else [f"{summary.p50 * MS:.0f}", f"{summary.p95 * MS:.0f}"]
        )
    return row


def lines_of(name: str, level: SessionsLevel) -> list[list[str]]:
    """All turns of a level, then some of a session by their place in it."""
    ahead = ", ".join(f"{key} {count}" for key, count in level.ahead.items())
    rate, failed = f"{level.audio_rate:.1f}", str(len(level.errors))
    rows = [[name, *waits(level.turns), rate, failed, ahead]]
    if level.sessions == 1:
        for turn in level.turns:
            tokens = f"{turn.input_tokens} tokens, {turn.cached_tokens} read"
            rows.append([f"turn {turn.number + 1}", *waits([turn]), "", "", tokens])
    return rows


def measure(server: TinyServer, ahead: str, out: Path, asked: argparse.Namespace) -> Table:
    """Each level, and interruptions."""
    table = Table(title=f"{ahead}: first sound after the decided end, after the last sample, ms")
    for column in ("", "turns", "p50", "p95", "p50", "p95", "audio s/s", "failed", "more"):
        table.add_column(column, justify="left" if column in ("", "more") else "right")
    stem = ahead.replace("/", "-")
    for text in asked.levels.split(","):
        level = bench(server, out / f"{stem}-{text}.json", text, asked)
        for line in lines_of(text, level):
            table.add_row(*line)
        say(json.dumps(lines_of(text, level)))
    if asked.barge_ins:
        text = f"1x{asked.barge_ins}"
        path = out / f"{stem}-barge-in.json"
        level = bench(server, path, text, asked, *BARGE_INS)
        pairs = zip(level.turns, level.turns[1:], strict=False)
        behind = [one for before, one in pairs if before.interrupted_s is not None]
        row = ["after a barge-in", *waits(behind), "", str(len(level.errors))]
        stops = level.barge_in_s
        more = f"late deltas {level.num_late_deltas}"
        if stops is not None:
            more += f", response.done after {stops.p50 * MS:.0f}, {stops.p95 * MS:.0f}"
        table.add_row(*row, more)
        say(json.dumps([*row, more]))
    return table


def serve(ahead: str, model: Path, out: Path, asked: argparse.Namespace) -> bool:
    """One server: compared, then measured."""
    answers, _, histories = ahead.partition("/")
    greedy = {"temperature": 0, "ignore_eos": "true"}
    defaults = {
        "thinker": {**greedy, "max_tokens": asked.tokens},
        "talker": {**greedy, "max_tokens": asked.frames, "repetition_penalty": 1},
    }
    options = ["--model", str(model), "--answer-ahead", answers, "--history-ahead", histories]
    for stage, values in defaults.items():
        for key, value in values.items():
            options += ["--set-default", f"{stage}.{key}={value}"]
    options += [] if asked.tiny else ["--load-format", "dummy"]
    options += mps_option(not (asked.no_mps or asked.tiny))
    began = time.monotonic()
    with running_server(str(asked.graph), out / f"{answers}-{histories}.log", *options) as server:
        say(f"ahead {ahead}: ready after {time.monotonic() - began:.1f} s")
        if not compare(server, asked):
            return False
        table = measure(server, ahead, out, asked)
        is_right = compare(server, asked)  # still
        if is_right:
            Console(width=150).print(table)
    return is_right


def main() -> None:
    """Serve each way; the exit code is 1 if one's answers are others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, default=GRAPHS / "qwen3_omni_1gpu.yaml")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--ahead", default="0/0,8/16", help="of the servers, one after the other")
    parser.add_argument("--levels", default="1x10,8x3,32x2", help="sessions and their turns")
    parser.add_argument("--barge-ins", type=int, default=6, help="turns that interrupt; 0: none")
    parser.add_argument("--speech-seconds", type=float, default=10)
    parser.add_argument("--compared", type=int, default=3, help="sessions, of two turns each")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer's text")
    parser.add_argument("--frames", type=int, default=50, help="of an answer's speech, 80 ms each")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--out", type=Path, help="a folder for logs and samples")
    parser.add_argument("--model", type=Path, help="keep the model's folder here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = asked.out or folder
        out.mkdir(parents=True, exist_ok=True)
        model = asked.model or folder / "model"
        if asked.tiny:
            asked.graph = GRAPHS / "qwen3_omni_tiny.yaml"
            write_tiny_checkpoint(model, 0)
        elif not model.exists():
            write_real_size_folder(model)
        right = [serve(ahead, model, out, asked) for ahead in asked.ahead.split(",")]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
