"""A start on a terminal has at most a dozen lines; elsewhere the log has every line."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.ports import free_port
from support.terminal import Terminal, screen
from support.waiting import wait_until

SCRIPT = Path(__file__).parents[1] / "support" / "fakes" / "server.py"
NOISE = 40
STAGES = ("thinker", "talker", "code2wav")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A cache of the test's own, and stages that print a lot."""
    return {"XDG_CACHE_HOME": str(tmp_path), "FAKE_SERVER_NOISE": str(NOISE)}


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Terminal]:
    started = Terminal([sys.executable, str(SCRIPT)], environment, columns=160)
    yield started
    try:
        os.kill(started.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    started.wait()


def test_a_start_on_a_terminal_has_a_line_a_stage_and_ends_with_what_to_try(
    terminal: Terminal, tmp_path: Path
) -> None:
    logs = tmp_path / "omnistage" / "logs"
    terminal.read_until(str(logs))
    lines = terminal.lines
    assert len(lines) <= 12, lines
    assert re.fullmatch(r"omnistage \S+, vLLM \S+: tests/fake-omni \(text, audio\)", lines[0])
    for line, name in zip(lines[1:4], STAGES, strict=True):
        assert re.match(rf"\s*{name}: ready ", line), lines
    ready = re.fullmatch(r"Ready after \d+ s: (http://127.0.0.1:\d+)/v1", lines[4])
    assert ready is not None, lines
    url = ready[1]
    assert lines[5].startswith(f"  curl {url}/v1/chat/completions -H ")
    assert re.fullmatch(rf"  omnistage demo --url {url} *a page in the browser", lines[6])
    assert re.fullmatch(rf"  {url}/docs +the API", lines[7])
    assert re.fullmatch(rf"  {logs} +what the stages print", lines[8])
    assert len(lines) == 9
    answer = subprocess.run(["bash", "-c", lines[5]], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]
    terminal.read_until("POST")  # the key throws away what nobody has read
    terminal.press_ctrl_c()
    assert terminal.wait() == 0
    later = " ".join("\n".join(terminal.lines[9:]).split())  # lines are folded
    assert "POST /v1/chat/completions 200" in later
    assert "stopping; a second Ctrl-C ends running answers" in later
    assert "all stages have ended" in later
    assert "warns of" not in later


def test_what_stages_print_is_in_a_file_for_each(terminal: Terminal, tmp_path: Path) -> None:
    logs = tmp_path / "omnistage" / "logs"
    terminal.read_until(str(logs))
    for name in STAGES:
        said = (logs / f"{name}.log").read_text().splitlines()
        expected = [f"WARNING {name} warns of {number}" for number in range(NOISE)]
        assert [line.split(" ", 2)[2] for line in said] == expected


def test_a_stage_that_cannot_start_shows_its_last_warnings(
    environment: dict[str, str], tmp_path: Path
) -> None:
    broken = {**environment, "FAKE_SERVER_BROKEN": "talker"}
    terminal = Terminal([sys.executable, str(SCRIPT)], broken, columns=160)
    assert terminal.wait() == 1
    shown = [line for line in terminal.lines if "warns of" in line]
    last = [f"[talker] WARNING talker warns of {number}" for number in range(NOISE - 20, NOISE)]
    assert shown == last
    assert "stage talker ended while it loaded: exit code 1" in " ".join(terminal.lines)


def test_with_log_level_debug_the_terminal_has_every_line(environment: dict[str, str]) -> None:
    loud = {**environment, "FAKE_SERVER_LEVEL": "debug"}
    terminal = Terminal([sys.executable, str(SCRIPT)], loud, columns=160)
    terminal.read_until(f"code2wav warns of {NOISE - 1}")
    for name in STAGES:
        terminal.read_until(f"stage {name} ready in")
    assert sum("warns of" in line for line in terminal.lines) == NOISE * len(STAGES)
    terminal.press_ctrl_c()
    assert terminal.wait() == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_that_is_no_terminal_has_every_line_and_when_the_server_is_ready(
    form: str, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env={**os.environ, **environment, "FAKE_SERVER_LOG": form},
            stdout=output,
            stderr=output,
        )
    try:
        url = found_in(log, r"ready after \d+\.\d s: (http://127.0.0.1:\d+) serves tests/fake-omni")
        assert httpx.get(f"{url}/ready").status_code == 200
    finally:
        process.terminate()
        assert process.wait(600) == 0
    text = log.read_text()
    assert text.count("warns of") == NOISE * len(STAGES)
    assert not (tmp_path / "omnistage").exists()


def found_in(log: Path, pattern: str) -> str:
    wait_until(lambda: re.search(pattern, log.read_text()))
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found[1]


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_a_page_beside_the_server_is_named_and_ends_with_it(
    how: str, environment: dict[str, str]
) -> None:
    port = free_port()
    started = {**environment, "FAKE_SERVER_PAGE": str(port), "FAKE_SERVER_NOISE": "0"}
    terminal = Terminal([sys.executable, str(SCRIPT)], started, columns=160)
    terminal.read_until(f"The page is at http://127.0.0.1:{port}", 600)
    terminal.read_until("Ready after")
    assert not any("omnistage demo" in line for line in terminal.lines)
    children = psutil.Process(terminal.pid).children(recursive=True)
    assert len(children) >= len(STAGES) + 1
    assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
    if how == "Ctrl-C":
        terminal.press_ctrl_c()
    else:
        os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.wait() == 0
    wait_until(lambda: not [child for child in children if child.is_running()])


def test_a_screen_has_what_was_redrawn_once() -> None:
    drawn = "one\r\n\x1b[32mtwo\x1b[0m 1%\r\x1b[2K\x1b[1A\x1b[2Kone\r\ntwo 100%\r\nend"
    assert screen(drawn) == ["one", "two 100%", "end"]
