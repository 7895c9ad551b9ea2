"""`make realtime-turns`: where the time of each turn of a conversation by voice goes.

Sessions of /v1/realtime, one after the other, speak questions of `--speech-seconds` and commit them
by hand; the answers are of one length. For each turn the first table has when the request of an
answer reached each stamp of its timeline, ms after its beginning, and the second the processor time
of the server's parts from its beginning to its end: what grows there with the number of turns is
work on the host. All are medians over the sessions behind the first, and least values in brackets.
Nothing is made ahead. `--tiny` runs on a CPU.
"""

import argparse
import base64
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import yaml
from rich.console import Console
from rich.table import Table
from support.server import TinyServer, mps_option, running_server
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


def processor_ns(server: TinyServer) -> dict[str, int]:
    """Nanoseconds of processor time of each part, its engine and threads included."""
    used = dict.fromkeys(PARTS, 0)

    def add(process: psutil.Process, part: str) -> None:
        command = process.cmdline()
        if "--stage" in command:
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
    parser.add_argument("--no-mps", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.tiny:
            asked.graph = tiny_graph(folder)
            write_tiny_checkpoint(folder / "model", 0)
        else:
            write_real_size_folder(folder / "model")
        options = ["--model", str(folder / "model"), "--answer-ahead", "0", "--history-ahead", "0"]
        for stage, most in (("thinker", asked.tokens), ("talker", asked.frames)):
            for default in ("temperature=0", "ignore_eos=true", f"max_tokens={most}"):
                options += ["--set-default", f"{stage}.{default}"]
        options += [] if asked.tiny else ["--load-format", "dummy"]
        options += mps_option(not (asked.no_mps or asked.tiny))
        with running_server(str(asked.graph), folder / "log", *options) as server:
            figures = converse(server, asked)
    console = Console(width=200)
    for table in figures.tables():
        console.print(table)


if __name__ == "__main__":
    main()
