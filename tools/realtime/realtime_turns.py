"""`make realtime-turns`: where the time of each turn of a conversation by voice goes.

Sessions of /v1/realtime, one after the other, speak questions of `--speech-seconds` and commit them
by hand; the answers are of one length. For each turn the first table has when the request of an
answer reached each stamp of its timeline, ms after its beginning, and the second the processor time
of the server's parts from its beginning to its end: what grows there with the number of turns is
work on the host. All are medians over the sessions behind the first, and least values in brackets.
Nothing is made ahead. `--tiny` runs on a CPU.

`--talker-graphs 1024,2048`: a server for each, whose talker records CUDA graphs of prompts of up to
so many rows. Each also answers chats of `--long-words` words, one after another. The codes must be
the first server's: rounding differs, so most first frames. A server that stands twice in the list
shows what rounding alone does. At the end is the first audio of the last turn of each. The exit
code is 1 if codes are others, a server saw a NaN or failed.
"""

import argparse
import asyncio
import base64
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import yaml
from judging import MIN_SAME_FIRST_CODES, Answer, Lengths, ask_all, nan_steps, prompts
from rich.console import Console
from rich.table import Table
from support.printing import say
from support.servers.server import TinyServer, mps_option, running_server
from websockets.sync.client import connect

from omnistage.bench.realtime.voice import Samples, synthesized
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

PARTS = ("gateway", "thinker", "talker", "code2wav")
STAMPS = (
    "gateway.sent",
    "thinker.rendered",
    "thinker.first_token",
    "talker.first_prefill",
    "talker.first_code",
    "code2wav.first_samples",
    "gateway.first_audio",
)
EVENT_BYTES = 480_000  # of audio
NS_PER_MS = 1e6
GRAPH_STEP = 256  # rows between the sizes of large graphs
NUM_LONG = 8  # chats with long prompts


def processor_ns(server: TinyServer) -> dict[str, int]:
    """Nanoseconds of processor time of each part, its engine and threads included."""
    used = dict.fromkeys(PARTS, 0)

    def add(process: psutil.Process, part: str) -> None:
        command = " ".join(process.cmdline()).split()
        if "--stage" in command and "--importer" not in command:
            part = command[command.index("--stage") + 1]
        tasks = Path(f"/proc/{process.pid}/task")
        used[part] += sum(int(one.read_text().split()[0]) for one in tasks.glob("*/schedstat"))
        for child in process.children():
            add(child, part)

    add(psutil.Process(server.process.pid), "gateway")
    return used


def last_timeline(server: TinyServer) -> dict[str, float]:
    """Stamps of the last answer, ms."""
    traces = httpx.get(f"{server.url}/admin/traces").json()["traces"]
    name = traces[0]["request_id"]
    timeline = httpx.get(f"{server.url}/admin/traces/{name}").json()["timeline"]
    return {f"{mark['stage']}.{mark['event']}": mark["ms"] for mark in timeline}


class Figures:
    """The figures of each turn, of all measured sessions."""

    def __init__(self) -> None:
        self.tokens: dict[int, tuple[int, int]] = {}  # of a prompt, and those that were read
        self.stamps: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.used: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def tables(self) -> list[Table]:
        """Return the stamps and the processor time, a line for each turn."""
        stamps, used = Table(title="ms"), Table(title="processor time, ms")
        for name in ("turn", "tokens", "read", *STAMPS):
            stamps.add_column(name, justify="right")
        for name in ("turn", *PARTS):
            used.add_column(name, justify="right")
        for turn, tokens in self.tokens.items():
            found = [_of(self.stamps[turn][name]) for name in STAMPS]
            stamps.add_row(str(turn), *map(str, tokens), *found)
            used.add_row(str(turn), *(_of(self.used[turn][part]) for part in PARTS))
        return [stamps, used]


def _of(values: Sequence[float]) -> str:
    return f"{median(values):.0f} ({min(values):.0f})" if values else ""


class Session:
    """A session whose turns are committed by hand."""

    def __init__(self, ws: Any, server: TinyServer, num_tokens: int) -> None:
        self._ws = ws
        self._server = server
        by_hand = {"input": {"turn_detection": None}}
        settings = {"type": "realtime", "max_output_tokens": num_tokens, "audio": by_hand}
        self._say("session.update", session=settings)
        self._until("session.updated")

    def turn(self, number: int, samples: Samples, figures: Figures | None) -> None:
        """Speak and hear the answer."""
        pcm = samples.astype("<i2").tobytes()
        for start in range(0, len(pcm), EVENT_BYTES):
            audio = base64.b64encode(pcm[start : start + EVENT_BYTES]).decode()
            self._say("input_audio_buffer.append", audio=audio)
        self._say("input_audio_buffer.commit")
        self._until("conversation.item.done")
        before = processor_ns(self._server)
        self._say("response.create")
        response = self._until("response.done")["response"]
        after = processor_ns(self._server)
        if response["status"] not in ("completed", "incomplete"):
            raise RuntimeError(f"the answer ended as {response}")
        if figures is None:
            return
        usage = response["usage"]
        read = usage["input_token_details"]["cached_tokens"]
        figures.tokens[number] = usage["input_tokens"], read
        for part in PARTS:
            figures.used[number][part].append((after[part] - before[part]) / NS_PER_MS)
        timeline = last_timeline(self._server)
        for name in STAMPS:
            figures.stamps[number][name].append(timeline[name])

    def _say(self, kind: str, **fields: Any) -> None:
        self._ws.send(json.dumps({"type": kind, **fields}))

    def _until(self, kind: str) -> dict[str, Any]:
        while (event := json.loads(self._ws.recv(timeout=300)))["type"] != kind:
            if event["type"] == "error":
                raise RuntimeError(f"the session was refused: {event['error']}")
        found: dict[str, Any] = event
        return found


def converse(server: TinyServer, asked: argparse.Namespace) -> Figures:
    """Hold all conversations; nobody measures the first, which warms the server up."""
    figures = Figures()
    url = server.url.replace("http", "ws", 1) + "/v1/realtime"
    for number in range(1 + asked.sessions):
        with connect(url, open_timeout=60, compression=None, max_size=None) as ws:
            session = Session(ws, server, asked.tokens)
            for turn in range(1, asked.turns + 1):
                samples = synthesized(asked.speech_seconds, 100 * number + turn)
                session.turn(turn, samples, figures if number else None)
    return figures


def tiny_graph(folder: Path) -> Path:
    """Write the graph of the tiny model with room for long conversations."""
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    for name in ("thinker", "talker"):
        graph["stages"][name]["engine"] |= {"max_model_len": 4096, "max_num_batched_tokens": 2048}
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


def with_talker_graphs(path: Path, most: int, folder: Path) -> Path:
    """Write the graph file whose talker records graphs of up to so many rows."""
    graph = yaml.safe_load(path.read_text())
    talker = graph["stages"]["talker"]
    recorded = {**talker["engine"].get("compilation_config", {})}
    sizes = [size for size in recorded.get("cudagraph_capture_sizes", [1]) if size <= most]
    recorded["cudagraph_capture_sizes"] = [*sizes, *range(sizes[-1], most + 1, GRAPH_STEP)[1:]]
    talker["engine"] = {**talker["engine"], "compilation_config": recorded}
    written = folder / f"talker-{most}.yaml"
    written.write_text(yaml.safe_dump(graph))
    return written


def same_frames(answers: Sequence[Answer], first: Sequence[Answer]) -> tuple[int, float]:
    """How many first frames are equal, and the share of frames before the first other one."""
    leading = []
    for one, other in zip(answers, first, strict=True):
        same = [ours == theirs for ours, theirs in zip(one.codes, other.codes, strict=False)]
        leading.append((same.index(False) if False in same else len(same)) / len(other.codes))
    return sum(share > 0 for share in leading), sum(leading) / len(leading)


def are_the_same(name: str, answers: Sequence[Answer], first: Sequence[Answer]) -> bool:
    """Say how many codes of a server are the first one's; return whether enough are."""
    count, leading = same_frames(answers, first)
    is_right = count >= MIN_SAME_FIRST_CODES * len(first)
    say(
        f"{name}: {'right' if is_right else 'WRONG'}; prompts of "
        f"{min(len(one.prompt) for one in answers)} tokens and more, texts equal in "
        f"{sum(one.text == other.text for one, other in zip(answers, first, strict=True))} of "
        f"{len(first)}, first frames in {count}, leading frames in {leading:.0%}"
    )
    return is_right


def serve(
    graph: Path, model: Path, log: Path, asked: argparse.Namespace
) -> tuple[Figures, list[Answer], bool]:
    """One server: its figures, its answers to long chats, and whether no stage saw a NaN."""
    options = ["--model", str(model), "--answer-ahead", "0", "--history-ahead", "0"]
    for stage, most in (("thinker", asked.tokens), ("talker", asked.frames)):
        for default in ("temperature=0", "ignore_eos=true", f"max_tokens={most}"):
            options += ["--set-default", f"{stage}.{default}"]
    options += [] if asked.tiny else ["--load-format", "dummy"]
    options += mps_option(not (asked.no_mps or asked.tiny))
    with running_server(str(graph), log, *options) as server:
        figures = converse(server, asked)
        long = Lengths(words=asked.long_words, tokens=asked.tokens)
        texts = prompts((model / "words.txt").read_text().split(), NUM_LONG, long)
        asking = ask_all(server, "ethan", texts, asked.frames, at_once=1, tokens=asked.tokens)
        answers = asyncio.run(asking) if asked.talker_graphs else []
        nans = nan_steps(server)
    if any(nans.values()):
        say(f"WRONG: NaN steps: {nans}")
    return figures, answers, not any(nans.values())


def compare(
    graphs: Sequence[tuple[str, Path]], model: Path, folder: Path, asked: argparse.Namespace
) -> bool:
    """Serve each and print; return whether all answer as the first, without a NaN."""
    console, first, waits, is_right = Console(width=200), list[Answer](), [], True
    for number, (name, graph) in enumerate(graphs):
        try:
            figures, answers, has_no_nan = serve(graph, model, folder / f"log-{number}", asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, others can be measured
            say(f"{name}: FAILED: {error}")
            is_right = False
            continue
        for table in figures.tables():
            console.print(table)
        first = first or answers
        is_right &= has_no_nan and (not first or are_the_same(name, answers, first))
        last = figures.stamps[asked.turns]["gateway.first_audio"]
        waits.append(f"{name}: {_of(last)} ms")
    say(f"first audio of turn {asked.turns}: {'; '.join(waits)}")
    return is_right


def main() -> None:
    """Serve, converse and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, default=GRAPHS / "qwen3_omni_1gpu.yaml")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--sessions", type=int, default=3, help="that are measured")
    parser.add_argument("--speech-seconds", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=16, help="of an answer's text")
    parser.add_argument("--frames", type=int, default=16, help="of an answer's speech, 80 ms each")
    parser.add_argument("--talker-graphs", default="", help="rows: a server for each, compared")
    parser.add_argument("--long-words", type=int, default=1500, help="of a compared chat")
    parser.add_argument("--no-mps", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), Path(name) / "model"
        if asked.tiny:
            asked.graph = tiny_graph(folder)
            write_tiny_checkpoint(model, 0)
            (model / "words.txt").write_text("one two three four\n")
        else:
            write_real_size_folder(model)
        graphs = [
            (f"graphs to {most}", with_talker_graphs(asked.graph, int(most), folder))
            for most in filter(None, asked.talker_graphs.split(","))
        ]
        is_right = compare(graphs or [("as it is", asked.graph)], model, folder, asked)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
