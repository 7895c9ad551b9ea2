"""HAProxy's configuration, as far as it can be judged without HAProxy."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from omnistage.server.cells.haproxy import Front, configuration, find_haproxy
from omnistage.server.cells.layout import Cell

CELLS = [Cell(0, 8001, ()), Cell(1, 8002, ())]
HERE = Front("127.0.0.1", 8000, 2.0)


def sections(front: Front = HERE) -> dict[str, list[str]]:
    """The lines of each section without comments."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in configuration(front, CELLS).splitlines():
        if line.startswith("    ") and not line.strip().startswith("#"):
            found[section].append(line.strip())
        elif line.strip() and not line.strip().startswith("#"):
            section = line
            found[section] = []
    return found


def test_every_cell_is_a_server_that_is_asked_whether_it_is_ready() -> None:
    lines = sections()["backend cells"]
    assert lines[-2:] == ["server cell0 127.0.0.1:8001", "server cell1 127.0.0.1:8002"]
    assert "http-check send meth GET uri /ready" in lines
    assert "http-check expect status 200" in lines
    (default,) = [line for line in lines if line.startswith("default-server")]
    assert default == "default-server check inter 500ms fall 1 rise 1"
    assert "balance leastconn" in lines


def test_what_a_cell_refuses_or_has_not_begun_to_answer_goes_to_another() -> None:
    lines = sections()["defaults"]
    assert "retry-on conn-failure empty-response 503" in lines
    assert "option redispatch 1" in lines
    assert "option http-buffer-request" in lines  # else only what came in one piece goes again
    assert "retries 3" in lines


def test_streams_are_passed_on_at_once_and_may_be_silent_for_long() -> None:
    lines = sections()["defaults"]
    assert "option http-no-delay" in lines
    for name in ("client", "server"):
        assert f"timeout {name} 1h" in lines
    assert "timeout tunnel 24h" in lines


def test_a_client_that_hangs_up_and_its_address_are_known_to_the_cell() -> None:
    lines = sections()["defaults"]
    assert {"option abortonclose", "option forwardfor"} <= set(lines)


def test_answers_have_all_of_drain_s_when_the_balancer_ends() -> None:
    assert "hard-stop-after 150s" in sections(Front("127.0.0.1", 8000, 120.0))["global"]


@pytest.mark.parametrize(
    ("limit", "connections"), [(20_000, 9_900), (1 << 20, 20_000), (-1, 20_000), (256, 28)]
)
def test_there_are_no_more_connections_than_the_system_has_files_for(
    limit: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, limit))
    assert f"maxconn {connections}" in sections()["global"]


@pytest.mark.parametrize(
    ("host", "bind"), [("0.0.0.0", "bind 0.0.0.0:8000"), ("::", "bind [::]:8000")]
)
def test_it_listens_where_it_is_told(host: str, bind: str) -> None:
    assert bind in sections(Front(host, 8000, 2.0))["frontend front"]


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("/admin/sleep", True),
        ("/admin", True),
        ("/metrics", True),
        ("/v1/load_lora_adapter", True),
        ("/v1/unload_lora_adapter", True),
        ("/models/admin/sleep", True),
        ("/%61dmin/sleep", True),
        ("/%6DETRICS", True),
        ("/administration", False),
        ("/ready", False),
        ("/v1/chat/completions", False),
        ("/v1/models", False),
    ],
)
def test_what_is_of_one_cell_is_not_asked_of_any(path: str, is_refused: bool) -> None:
    lines = sections(Front("127.0.0.1", 8000, 2.0, "/models"))["frontend front"]
    (rule,) = [line for line in lines if line.startswith("http-request return")]
    (pattern,) = re.findall(r"path,url_dec,lower -m reg '([^']*)'", rule)
    decoded = unquote(path).lower()
    assert bool(re.search(pattern, decoded)) is is_refused
    (body,) = re.findall(r"string '([^']*)'", rule)
    assert json.loads(body)["error"]["code"] == "of_one_cell"


def test_without_a_ready_cell_the_error_is_one_of_the_api() -> None:
    (rule,) = [line for line in sections()["backend cells"] if line.startswith("http-error")]
    (body,) = re.findall(r"string '([^']*)'", rule)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "no_cell"


def test_the_check_goes_below_a_proxys_path() -> None:
    lines = sections(Front("127.0.0.1", 8000, 2.0, "/models"))["backend cells"]
    assert "http-check send meth GET uri /models/ready" in lines


def test_sessions_stay_by_the_header_that_clients_may_send() -> None:
    lines = sections()["backend cells"]
    assert "stick on req.hdr(x-session-id)" in lines
    assert any(line.startswith("stick-table type string") for line in lines)


def test_haproxy_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "haproxy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_haproxy() == str(program)
