"""Measures the embedded models on a machine with nothing else to do: starts, voices, drawings."""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from language.texts import to_speak
from support.servers.server import TinyServer, running_server
from voices import SPEAKERS

MIB = 2**20
WISH = "Draw a red circle on blue."
PCM_RATE = 24_000


def memory_mib(server: TinyServer) -> float:
    """What a server and its stages hold by themselves, with their shares of what they share."""
    root = psutil.Process(server.process.pid)
    return sum(one.memory_full_info().pss for one in (root, *root.children(recursive=True))) / MIB


def work_s(server: TinyServer) -> float:
    """Seconds of one core that a server and its stages have worked, whatever else runs."""
    root = psutil.Process(server.process.pid)
    times = [one.cpu_times() for one in (root, *root.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return ended + sum(one.user + one.system for one in times)


def speech(client: httpx.Client, text: str, voice: str) -> tuple[float, float, float]:
    """Seconds to the first sound, to the end, and of the sound."""
    body = {"model": "small", "input": text, "voice": voice, "response_format": "pcm"}
    started, first, size = time.monotonic(), 0.0, 0
    with client.stream("POST", "/v1/audio/speech", json=body) as reply:
        reply.raise_for_status()
        for chunk in reply.iter_raw():
            first = first or time.monotonic() - started
            size += len(chunk)
    return first, time.monotonic() - started, size / 2 / PCM_RATE


def chat(client: httpx.Client, modalities: list[str], question: str) -> float:
    """Seconds of a whole answer."""
    body: dict[str, Any] = {"model": "small", "modalities": modalities, "temperature": 0}
    body["messages"] = [{"role": "user", "content": question}]
    if "audio" in modalities:
        body["audio"] = {"voice": SPEAKERS[0], "format": "wav"}
    started = time.monotonic()
    reply = client.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    return time.monotonic() - started


def voices(client: httpx.Client, count: int) -> float:
    """Print the speed of held-out sentences one after another; seconds of their sound."""
    pick = random.Random(11)
    texts = [(to_speak(pick, held_out=True), SPEAKERS[number % 4]) for number in range(count)]
    made = [speech(client, *one) for one in texts]
    rtf = [taken / seconds for _, taken, seconds in made]
    first = sorted(1000 * first for first, *_ in made)
    print(
        f"{count} sentences: RTF {statistics.median(rtf):.2f}, at most {max(rtf):.2f}; first "
        f"sound {statistics.median(first):.0f} ms, at most {first[-1]:.0f}",
        flush=True,
    )
    return sum(seconds for *_, seconds in made)


def main() -> None:
    """Print seconds until ready, memory, the speed of voices and of drawings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", default=["small"])
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--count", type=int, default=20, help="sentences")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for target in given.targets:
            ready = []
            for number in range(given.starts):
                started = time.monotonic()
                with running_server(target, Path(folder) / "log") as server:
                    ready.append(time.monotonic() - started)
                    if number + 1 < given.starts:
                        continue
                    print(
                        f"{target}: ready after {', '.join(f'{one:.1f}' for one in ready)} s, "
                        f"{work_s(server):.0f} s of a core, {memory_mib(server):.0f} MiB",
                        flush=True,
                    )
                    client = httpx.Client(base_url=server.url, timeout=120)
                    if server.model != "small":
                        continue
                    before = work_s(server)
                    seconds = voices(client, given.count)
                    work = (work_s(server) - before) / seconds
                    print(f"{work:.2f} s of a core for a second of sound", flush=True)
                    if "dit" in server.generations():
                        drawn = [chat(client, ["text", "image"], WISH) for _ in range(6)]
                        print(f"a drawing of 128 px: {statistics.median(drawn):.2f} s", flush=True)
                        taken = chat(client, ["text", "audio", "image"], WISH)
                        print(
                            f"words, voice and drawing: {taken:.2f} s, "
                            f"{memory_mib(server):.0f} MiB",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
