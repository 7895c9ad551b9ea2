"""Control of running vLLM engines: what vLLM offers on a CPU, and clear words for the rest."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.server import TinyServer, running_server

from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine

KEY = "sk-admin"
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def omni(
    tiny_checkpoint: Path, traces: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("admin")
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    profiler = {"profiler": "torch", "torch_profiler_dir": str(traces)}
    graph["stages"]["thinker"]["engine"]["profiler_config"] = profiler
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    options = ("--model", str(tiny_checkpoint), "--admin-key", KEY)
    with running_server(str(path), folder / "log", *options) as server:
        yield server


def admin(server: TinyServer, path: str, /, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{server.url}/admin/{path}", json=body, headers=headers, timeout=120)


def test_an_engine_without_sleep_mode_says_what_it_needs(omni: TinyServer) -> None:
    refused = admin(omni, "sleep", stages=["thinker", "talker"])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_command")
    assert "enable_sleep_mode" in error["message"]
    assert "does not know" in admin(omni, "sleep", stages=["code2wav"]).json()["error"]["message"]
    assert httpx.get(f"{omni.url}/ready").status_code == 200


async def test_a_profile_is_written_under_its_prefix(omni: TinyServer, traces: Path) -> None:
    begun = admin(omni, "profile/start", prefix="hello")
    assert begun.json() == {"stages": {"thinker": {"folder": str(traces)}}}, begun.text
    await omni.ask(HELLO)
    assert admin(omni, "profile/stop").json() == begun.json()
    files = {file.name: file.read_bytes() for file in sorted(traces.iterdir())}  # noqa: ASYNC240
    assert any(b"aten::" in gzip.decompress(data) for data in files.values()), list(files)


def test_other_weights_are_refused(omni: TinyServer) -> None:
    refused = admin(omni, "load_weights", stages=["thinker"])
    assert "does not bring the same model back" in refused.json()["error"]["message"]
