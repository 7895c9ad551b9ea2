"""What large requests take of a real server's memory, and that it comes back."""

import base64
import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from support.fakes.server import DECODE_BYTES
from support.gateway.serving import MODEL
from support.media.pictures import png
from support.waiting import wait_until

from omnistage.server.media.images import MAX_INPUT_PIXELS

SCRIPT = Path(__file__).parents[2] / "support" / "fakes" / "server.py"
MIB = 1 << 20
SETTLED_BYTES = 32 * MIB  # what a process may be larger after large requests
SIDE = 4096
NUM_AT_ONCE = 5
NUM_KEYS = 200_000
assert SIDE * SIDE == MAX_INPUT_PIXELS


class Gateway:
    """A gateway process."""

    def __init__(self, graph: str, log: Path) -> None:
        with log.open("wb") as output:
            command = [sys.executable, str(SCRIPT), graph]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._log = log
        self.client = httpx.Client(timeout=600)

    def wait(self) -> None:
        """Until it can serve."""
        wait_until(lambda: re.search(r"listening on (\S+)", self._log.read_text()))
        (self.client.base_url,) = re.findall(r"listening on (\S+)", self._log.read_text())
        wait_until(lambda: self.client.get("/ready").status_code == 200)

    def memory(self, name: str = "RssAnon") -> int:
        """Resident bytes without files and channels; with VmHWM the peak of all."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (kib,) = re.findall(rf"{name}:\s+(\d+) kB", status)
        return int(kib) << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(600)


@contextlib.contextmanager
def serving(graph: str, folder: Path) -> Iterator[Gateway]:
    gateway = Gateway(graph, folder / "log")
    with contextlib.closing(gateway):
        gateway.wait()
        yield gateway


def chat(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "words"}]
    return {"model": MODEL, "messages": [{"role": "user", "content": parts}]}


def noisy_png(width: int, height: int) -> bytes:
    """As large a file as a body may have, and 63 million pixels."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:950] = np.random.default_rng(0).integers(0, 255, (950, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def assert_comes_back(gateway: Gateway, before: int) -> None:
    wait_until(lambda: gateway.memory() - before < SETTLED_BYTES)


def test_memory_comes_back_after_pictures_in_chats(tmp_path: Path) -> None:
    body = chat(noisy_png(7900, 8000))
    with serving("omni", tmp_path) as gateway, ThreadPoolExecutor(4) as clients:
        small = gateway.client.post("/v1/chat/completions", json=chat(png(64, 64)))
        assert small.status_code == 200
        before = gateway.memory()
        asking = [
            clients.submit(gateway.client.post, "/v1/chat/completions", json=body) for _ in range(3)
        ]
        assert {one.result().status_code for one in asking} == {200}
        assert_comes_back(gateway, before)


def edit(gateway: Gateway, data: bytes) -> httpx.Response:
    return gateway.client.post(
        "/v1/images/edits", data={"prompt": "words"}, files={"image": ("a.png", data)}
    )


def test_decoding_has_a_bound_for_all_requests_and_gives_back_what_it_took(tmp_path: Path) -> None:
    data = png(SIDE, SIDE, (10, 20, 30, 40), "RGBA")
    with serving("images", tmp_path) as gateway, ThreadPoolExecutor(NUM_AT_ONCE) as clients:
        assert edit(gateway, png(64, 64)).status_code == 200
        before, all_before = gateway.memory(), gateway.memory("VmRSS")
        gateway.forget_peak()
        asking = [clients.submit(edit, gateway, data) for _ in range(NUM_AT_ONCE)]
        assert {one.result().status_code for one in asking} == {200}
        assert gateway.memory("VmHWM") - all_before < DECODE_BYTES
        assert_comes_back(gateway, before)


def test_memory_comes_back_after_a_body_of_many_keys(tmp_path: Path) -> None:
    metadata = {f"key {number}": [number] for number in range(NUM_KEYS)}
    body = {**chat(png(64, 64)), "metadata": metadata}
    with serving("omni", tmp_path) as gateway:
        before = gateway.memory()
        for _ in range(3):
            assert gateway.client.post("/v1/chat/completions", json=body).status_code in (200, 400)
        assert_comes_back(gateway, before)
