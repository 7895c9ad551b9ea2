"""Control of running vLLM engines: what vLLM offers on a CPU, and clear words for the rest."""

import gzip
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import ADMIN_KEY, TinyServer

pytestmark = pytest.mark.engine

HELLO = [{"role": "user", "content": "Hello, who are you?"}]


def admin(server: TinyServer, path: str, /, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return httpx.post(f"{server.url}/admin/{path}", json=body, headers=headers, timeout=120)


def test_an_engine_without_sleep_mode_says_what_it_needs(server: TinyServer) -> None:
    refused = admin(server, "sleep", stages=["thinker", "talker"])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_command")
    assert "enable_sleep_mode" in error["message"]
    assert "does not know" in admin(server, "sleep", stages=["code2wav"]).json()["error"]["message"]
    assert httpx.get(f"{server.url}/ready").status_code == 200


async def test_a_profile_is_written_under_its_prefix(server: TinyServer, profiles: Path) -> None:
    begun = admin(server, "profile/start", prefix="hello")
    assert begun.json() == {"stages": {"thinker": {"folder": str(profiles)}}}, begun.text
    await server.ask(HELLO)
    assert admin(server, "profile/stop").json() == begun.json()
    traces = {file.name: file.read_bytes() for file in profiles.glob("*.gz")}  # noqa: ASYNC240
    written = [name for name, data in traces.items() if b"aten::" in gzip.decompress(data)]
    assert any(name.startswith("hello") for name in written), list(traces)


def test_other_weights_are_refused(server: TinyServer) -> None:
    refused = admin(server, "load_weights", stages=["thinker"])
    assert "does not bring the same model back" in refused.json()["error"]["message"]
