"""The whole way on this machine: the embedded model, a server, one question, an answer.wav."""

import base64
import io
import json
import re
import signal
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

import httpx
import numpy as np
from openai import OpenAI
from PIL import Image, ImageDraw
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

RATE = 24000
ANSWER = Path("answer.wav")
MODEL = "small"
QUESTION = "What color is the circle?"
LISTENING = re.compile(r"listening on (\S+)")
START_S, STOP_S = 300, 60
POLL_S = 0.2
NUM_LOG_LINES = 15


def image_url() -> str:
    """A red circle on white as a data URL."""
    image = Image.new("RGB", (128, 128), "white")
    ImageDraw.Draw(image).ellipse((24, 24, 104, 104), fill="red")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


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
    """Ask with text and an image; save and describe the answer."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    voices = httpx.get(f"{url}/v1/audio/voices").json()["names"]
    content: list[Any] = [
        {"type": "image_url", "image_url": {"url": image_url()}},
        {"type": "text", "text": QUESTION},
    ]
    print(f"question    {QUESTION!r}, with a picture of a red circle")
    started = time.monotonic()
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content}],
        modalities=["text", "audio"],
        audio={"voice": voices[0], "format": "pcm16"},
        temperature=0,
        max_completion_tokens=64,
        stream=True,
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


def demonstrate(serve: Sequence[str], log: Path) -> None:
    """Serve, ask, stop; what the server prints goes to the log."""
    with log.open("wb") as output:
        print(f"model       {MODEL}, a toy that comes with omnistage", flush=True)
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
        demonstrate([*command, "serve", MODEL, "--port", "0"], Path(name) / "log")


if __name__ == "__main__":
    main()
