"""The whole way on this machine: a tiny random model, a server, one question, an answer.wav."""

import base64
import io
import json
import math
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from openai import OpenAI
from PIL import Image
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

RATE = 24000
ANSWER = Path("answer.wav")
QUESTION = "What do you see and hear?"
LISTENING = re.compile(r"listening on (\S+)")
START_S, STOP_S = 300, 60
POLL_S = 0.2
NUM_LOG_LINES = 15


def image_url() -> str:
    """A small picture as a data URL."""
    rows, columns = np.mgrid[0:64, 0:96]
    pixels = np.stack([rows * 4, columns * 2, (rows + columns) % 256], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def sound() -> str:
    """Half a second of a tone, a wav in base64."""
    samples = [int(9000 * math.sin(number * 0.17)) for number in range(8000)]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return base64.b64encode(buffer.getvalue()).decode()


def address_of(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """Where the server listens, as its log says."""
    deadline = time.monotonic() + START_S
    while not (found := LISTENING.search(log.read_text())):
        check_that_it_runs(server, log, deadline)
        time.sleep(POLL_S)
    return found[1]


def show_loading(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    """A line a stage, with a clock that stops when the stage is ready; return when all are."""
    deadline = time.monotonic() + START_S
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns) as progress:
        clocks: dict[str, TaskID] = {}
        while not clocks or not progress.finished:
            for name, state in states_of(url).items():
                if name not in clocks:
                    clocks[name] = progress.add_task(name, total=1)
                is_ready = int(state == "ready")
                progress.update(clocks[name], description=f"{name}: {state}", completed=is_ready)
            check_that_it_runs(server, log, deadline)
            time.sleep(POLL_S)


def states_of(url: str) -> dict[str, str]:
    """Returns what each stage does, in the order of the graph; nothing before the server
    answers.
    """
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            stages = json.load(answer)["stages"]
    except (urllib.error.URLError, TimeoutError):
        return {}
    return {name: stage["state"] for name, stage in stages.items()}


def check_that_it_runs(server: "subprocess.Popen[bytes]", log: Path, deadline: float) -> None:
    """End with the last lines of the server's log if it has ended or takes too long."""
    if server.poll() is not None:
        raise SystemExit(f"{log_tail(log)}\nthe server ended while it loaded")
    if time.monotonic() > deadline:
        raise SystemExit(f"{log_tail(log)}\nthe server was not ready within {START_S} s")


def log_tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text().splitlines()[-NUM_LOG_LINES:])


def ask(url: str) -> None:
    """Ask with text, an image and a sound; save and describe the answer."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    content: list[Any] = [
        {"type": "image_url", "image_url": {"url": image_url()}},
        {"type": "input_audio", "input_audio": {"data": sound(), "format": "wav"}},
        {"type": "text", "text": QUESTION},
    ]
    print(f"question    {QUESTION!r}, with a picture and half a second of a tone")
    started = time.monotonic()
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content}],
        modalities=["text", "audio"],
        audio={"voice": "ethan", "format": "pcm16"},
        temperature=0,
        max_completion_tokens=32,
        stream=True,
        extra_body={
            "stage_params": {"thinker": {"min_tokens": 12}, "talker": {"max_tokens": 60}},
        },
    )
    text, pcm, first_audio_s = "", b"", None
    for chunk in stream:
        for choice in chunk.choices:
            audio = choice.delta.model_dump().get("audio") or {}
            text += audio.get("transcript") or ""
            data = base64.b64decode(audio.get("data") or "")
            if data and first_audio_s is None:
                first_audio_s = time.monotonic() - started
            pcm += data
    taken_s = time.monotonic() - started
    describe(text, pcm, first_audio_s, taken_s)


def describe(text: str, pcm: bytes, first_audio_s: float | None, taken_s: float) -> None:
    """Print the answer and save its sound."""
    print(f"answer      {text!r}")
    samples = np.frombuffer(pcm, "<i2") / 32768
    if not len(samples) or first_audio_s is None:
        raise SystemExit("the answer has no sound")
    with wave.open(str(ANSWER), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(pcm)
    seconds = len(samples) / RATE
    print(f"{ANSWER}  {seconds:.2f} s, peak {np.abs(samples).max():.2f}, rms {samples.std():.3f}")
    print(f"TTFP        {first_audio_s * 1000:.0f} ms (time to the first packet of sound)")
    print(f"RTF         {taken_s / seconds:.3f} (seconds of work for a second of sound)")


def demonstrate(make: Sequence[str], serve: Sequence[str], log: Path) -> None:
    """Make a model, serve it, ask, stop; what the two commands print goes to the log."""
    with log.open("wb") as output:
        print("model       a tiny Qwen3-Omni with random weights", flush=True)
        if subprocess.run(make, stdout=output, stderr=output, check=False).returncode:
            raise SystemExit(f"{log_tail(log)}\nthe model could not be written")
        server = subprocess.Popen(serve, stdout=output, stderr=output)
        try:
            url = address_of(server, log)
            show_loading(url, server, log)
            ask(url)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(STOP_S)


def main() -> None:
    """The demonstration, with the command line of this environment."""
    command = [sys.executable, "-m", "omnistage.server.cli"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = str(folder / "tiny")
        make = [*command, "tiny", "qwen3-omni", model]
        demonstrate(make, [*command, "serve", model, "--port", "0"], folder / "log")


if __name__ == "__main__":
    main()
