"""A real server over the tiny checkpoint, in a process of its own, and a client for it."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from support.ports import free_port
from support.waiting import PATIENCE_S

ADMIN_KEY = "sk-admin"
MAX_QUEUE = 64  # of the server that most end-to-end tests share
VERIFY = False  # plain HTTP: a client's list of certificates takes 25 ms to read
START_S = 600.0
STOP_S = PATIENCE_S
SETTLE_S = PATIENCE_S  # for what requests held to be given back, on any machine
RUNNING: list["TinyServer"] = []  # every server of this process that is ready


@dataclass(frozen=True)
class Reply:
    """What a client got of one answer."""

    text: str
    codes: npt.NDArray[np.int64]
    pcm: npt.NDArray[np.int16]
    raw: Any


class TinyServer:
    """The address of a running server."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], model: str) -> None:
        self.url = url
        self.process = process
        self.model = model
        self.is_killed = False  # by a test that means to
        self.fixture: str | None = None  # of the tests that use it, if it runs beside others, too
        self.warm: dict[str, int] | None = None  # its stages' generations at its warm-up

    def body(self, messages: list[Any], **more: Any) -> dict[str, Any]:
        """A greedy request for text and speech."""
        return {
            "model": self.model,
            "messages": messages,
            "modalities": ["text", "audio"],
            "audio": {"voice": "ethan", "format": "pcm16"},
            "temperature": 0,
            "max_completion_tokens": 16,
            "stage_params": {"talker": {"temperature": 0, "max_tokens": 40}},
            "return_codes": True,
            **more,
        }

    def health(self) -> dict[str, Any]:
        """What /health says of the stages."""
        stages: dict[str, Any] = httpx.get(f"{self.url}/health", verify=VERIFY).json()["stages"]
        return stages

    def generations(self) -> dict[str, int]:
        """How often each stage was started."""
        return {name: stage["generation"] for name, stage in self.health().items()}

    def held(self) -> dict[str, dict[str, int]]:
        """What stages hold for requests: counts that are not zero, by stage."""
        health = self.health().items()
        held = {name: {w: n for w, n in stage["held"].items() if n} for name, stage in health}
        return {name: counts for name, counts in held.items() if counts}

    async def ask(self, messages: list[Any], **more: Any) -> Reply:
        """One whole answer."""
        async with httpx.AsyncClient(timeout=600, verify=VERIFY) as client:
            url = f"{self.url}/v1/chat/completions"
            response = await client.post(url, json=self.body(messages, **more))
        assert response.status_code == 200, response.text
        message = response.json()["choices"][0]["message"]
        audio = message["audio"]
        return Reply(
            audio["transcript"],
            np.array(audio.get("codes", [])),
            np.frombuffer(base64.b64decode(audio["data"]), "<i2"),
            response.json(),
        )

    async def stream(self, messages: list[Any], **more: Any) -> Reply:
        """The same answer, streamed and put together."""
        text, pcm = "", b""
        codes: list[list[int]] = []
        events = []
        async for event in self.events(messages, **more):
            events.append(event)
            for choice in event["choices"]:
                audio = choice["delta"].get("audio") or {}
                text += audio.get("transcript") or ""
                pcm += base64.b64decode(audio.get("data") or "")
                codes += audio.get("codes") or []
        return Reply(text, np.array(codes), np.frombuffer(pcm, "<i2"), events)

    async def events(self, messages: list[Any], **more: Any) -> Any:
        """Server-sent events of one answer."""
        body = self.body(messages, stream=True, **more)
        async with (
            httpx.AsyncClient(timeout=600, verify=VERIFY) as client,
            client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    event = decoded(line)
                    assert "error" not in event, event
                    yield event


def decoded(line: str) -> dict[str, Any]:
    """One server-sent event."""
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return event


def assert_same_sound(one: npt.NDArray[np.int16], other: npt.NDArray[np.int16]) -> None:
    """As exact as the reference is met: another batch rounds float32 sums differently."""
    assert len(one) == len(other)
    assert np.abs(one.astype(np.int32) - other).max(initial=0) / 32767 < 1e-4


def launch(
    target: str,
    log: Path,
    *options: str,
    python: str = sys.executable,
    cwd: Path | None = None,
    checkout: Path | None = None,
) -> TinyServer:
    """Start a server over a folder or a graph file, by a checkout's code; it is not ready yet.

    Its sessions tell speech by loudness, so that tones are speech, as in tests without engines.
    """
    port = free_port()
    environment = dict(os.environ)
    no_silero = log.parent / "no_silero"
    (no_silero / "silero_vad").mkdir(parents=True, exist_ok=True)
    (no_silero / "silero_vad" / "__init__.py").touch()  # an empty package in place of Silero's
    paths = [str(no_silero), environment.get("PYTHONPATH", "")]
    if checkout is not None:
        paths.insert(0, str(checkout.resolve() / ".pkg"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [python, "-m", "omnistage.server.cli", "serve", target]
    command += ["--host", "127.0.0.1", "--port", str(port), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=cwd
        )
    model = options[options.index("--model") + 1] if "--model" in options else target
    return TinyServer(f"http://127.0.0.1:{port}", process, model)


def mps_option(has_mps: bool) -> list[str]:
    """The server's option that starts NVIDIA's MPS, or does not."""
    return ["--mps", "on" if has_mps else "off"]


@contextlib.contextmanager
def running_server(
    target: str,
    log: Path,
    *options: str,
    python: str = sys.executable,
    cwd: Path | None = None,
    checkout: Path | None = None,
) -> Iterator[TinyServer]:
    """Serve a folder or a graph file until the context ends; it must end by itself.

    Unless it was killed, it must hold nothing for any request by then. The code is that of
    `checkout`, if one is given.
    """
    server = launch(target, log, *options, python=python, cwd=cwd, checkout=checkout)
    process = server.process
    try:
        deadline = time.monotonic() + START_S
        while not is_ready(server.url):
            assert process.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < deadline, log.read_text()[-6000:]
            time.sleep(0.2)
        RUNNING.append(server)
        yield server
        check_that_nothing_is_held(server)
    finally:
        if server in RUNNING:
            RUNNING.remove(server)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert code == 0 or server.is_killed, log.read_text()[-6000:]


def check_that_nothing_is_held(server: TinyServer) -> None:
    """All that stages held for requests is given back within SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while not server.is_killed and (held := server.held()):
        assert time.monotonic() < deadline, held
        time.sleep(0.05)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=600, verify=VERIFY).status_code == 200
    except httpx.TransportError:
        return False
