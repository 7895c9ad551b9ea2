"""`omnistage up`: which model and page it starts, and that the page ends with it."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.certificates import certificate
from support.gateway.serving import OMNI, running_gateway
from support.ports import free_port
from support.waiting import wait_until
from typer.testing import CliRunner, Result

from omnistage.server import cli
from omnistage.server.cli.serving.page_process import PageProcess
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.models.embedded import CHECKPOINTS, DEFAULT
from omnistage.stage_configs.models.random_weights import has_random_weights
from omnistage.stage_configs.pick import GRAPHS

TINY = str(GRAPHS / "qwen3_omni_tiny.yaml")
GIVEN = ("up", TINY, "--model", "m")


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


class Started:
    """What `omnistage up` would have served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *typed: str, **env: str) -> None:
        monkeypatch.setattr("omnistage.server.serve.serve", self._serve)
        self.result: Result = CliRunner().invoke(cli.app, list(typed), env=env)

    def _serve(self, graph: StageGraph, host: str, port: int, **others: Any) -> int:
        self.graph, self.port, self.page_at = graph, port, others["page_at"]
        return 0

    def page(self) -> PageProcess:
        page = self.page_at("http://127.0.0.1:1")
        assert isinstance(page, PageProcess)
        return page


def test_without_a_model_the_embedded_one_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Started(monkeypatch, "up", "--no-page")
    assert (first.result.exit_code, first.result.output) == (0, "")
    assert first.graph.model == str(CHECKPOINTS / DEFAULT)
    assert first.graph.served_names == (DEFAULT,)
    assert {"text", "audio"} <= set(first.graph.outputs)
    assert not has_random_weights(first.graph)
    assert "toy" in first.graph.note
    renamed = Started(monkeypatch, "up", "--no-page", "--served-model-name", "mine")
    assert renamed.graph.served_names == ("mine",)


def test_a_model_that_is_named_is_served_with_the_options_of_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Started(monkeypatch, *GIVEN, "--port", "0", "--no-page", OMNISTAGE_MAX_QUEUE="7")
    assert started.result.exit_code == 0, started.result.output
    assert (started.graph.model, started.port, started.page_at) == ("m", 0, None)


def test_the_page_listens_on_this_machine_alone_and_has_the_servers_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port = str(free_port())
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsk-file\n")
    everywhere = [*GIVEN, "--host", "0.0.0.0", "--page-port", port]
    for typed, key in (
        ([], None),
        (["--api-key", "sk-flag", "--api-key-file", str(keys)], "sk-flag"),
        (["--api-key-file", str(keys)], "sk-file"),
    ):
        page = Started(monkeypatch, *everywhere, *typed).page()
        assert page.place == ["--host", "127.0.0.1", "--port", port]
        assert page.environment.get("OMNISTAGE_API_KEY") == key


@pytest.mark.parametrize("name", ["gradio", "openai"])
def test_without_the_pages_packages_the_server_starts_and_it_is_told_how_to_get_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    started = Started(monkeypatch, *GIVEN)
    assert started.result.exit_code == 0
    assert started.page_at is None
    says = "warning: the page needs gradio and openai: pip install 'omnistage[demo]'\n"
    assert started.result.output == says


def test_a_port_of_the_page_that_is_taken_is_told_before_anything_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with taken_port() as port:
        started = Started(monkeypatch, *GIVEN, "--page-port", str(port))
    assert started.result.exit_code == 1
    assert not hasattr(started, "graph")
    assert started.result.output == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; end what has the "
        "port, or take another with --page-port (0: any that is free)\n"
    )


def test_a_server_with_tls_has_no_page_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate(tmp_path)
    files = ["--ssl-certfile", str(tmp_path / "cert.pem"), "--ssl-keyfile"]
    started = Started(monkeypatch, *GIVEN, *files, str(tmp_path / "key.pem"))
    assert started.result.exit_code == 0, started.result.output
    assert started.page_at is None
    assert started.result.output.startswith("warning: no page: ")


def test_the_page_is_reported_once_it_can_be_opened_and_ends_with_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    with running_gateway(tmp_path, OMNI) as gateway:
        with PageProcess(gateway.url, "127.0.0.1", port, None) as page:
            wait_until(lambda: "The page is at" in caplog.text)
            assert f"The page is at http://127.0.0.1:{port}" in caplog.messages
            assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
            assert psutil.pid_exists(page.pid)
        assert not psutil.pid_exists(page.pid)


def test_a_page_that_ends_early_says_why_and_its_end_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with taken_port() as port, PageProcess("http://x", "127.0.0.1", port, None):
        wait_until(lambda: "cannot listen on" in caplog.text)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(f"the page: error: cannot listen on 127.0.0.1:{port}: ")


def test_the_page_ends_when_the_server_is_killed() -> None:
    program = (
        "import sys, time\n"
        "from omnistage.server.cli.serving.page_process import PageProcess\n"
        f"with PageProcess('http://x', '127.0.0.1', {free_port()}, None) as page:\n"
        "    print(page.pid, flush=True)\n"
        "    time.sleep(3600)\n"
    )
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    page = psutil.Process(int(server.stdout.readline()))
    with server:
        os.kill(server.pid, signal.SIGKILL)
    page.wait(600)
