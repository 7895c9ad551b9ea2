"""The whole way on this machine: a tiny random model, a server, one question, an answer.wav."""

import base64
import io
import math
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import wave
from pathlib import Path
from typing import Any

import numpy as np
from openai import OpenAI
from PIL import Image

RATE = 24000
ANSWER = Path("answer.wav")
START_S = 300


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


def wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Return when every stage has loaded."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit("the server ended while it loaded")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.3)
    raise SystemExit(f"the server was not ready within {START_S} s")


def ask(url: str) -> None:
    """Ask with text, an image and a sound; save and describe the answer."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    content: list[Any] = [
        {"type": "image_url", "image_url": {"url": image_url()}},
        {"type": "input_audio", "input_audio": {"data": sound(), "format": "wav"}},
        {"type": "text", "text": "What do you see and hear?"},
    ]
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
    with wave.open(str(ANSWER), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(pcm)
    samples = np.frombuffer(pcm, "<i2") / 32768
    if not len(samples) or first_audio_s is None:
        raise SystemExit(f"the answer has no sound; its text: {text!r}")
    seconds = len(samples) / RATE
    print(f"text        {text!r}")
    print(f"{ANSWER}  {seconds:.2f} s, peak {np.abs(samples).max():.2f}, rms {samples.std():.3f}")
    print(f"TTFP        {first_audio_s * 1000:.0f} ms")
    print(f"RTF         {taken_s / seconds:.3f}")


def main() -> None:
    """Write, serve, ask, stop."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "omnistage.server.cli"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "tiny", "qwen3-omni", folder], check=True)
        server = subprocess.Popen([*command, "serve", folder, "--port", str(port)])
        try:
            wait_until_ready(url, server)
            ask(url)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


if __name__ == "__main__":
    main()
