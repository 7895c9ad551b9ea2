"""`omnistage up` from nothing, on a terminal: what is seen, what answers, what is left."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.ports import free_port
from support.terminal import Terminal

pytestmark = pytest.mark.engine

START_S = 300
MODEL, NOTE = (
    "small",
    "a toy that knows some 300 words, not Qwen; after an image or audio, begin a new conversation",
)


@pytest.fixture(scope="module")
def page_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def terminal(page_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One on which it is ready, with its page."""
    # What vLLM has found out of model classes stays known: a minute of a processor.
    known = os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm"))
    cache = {
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "VLLM_CACHE_ROOT": known,
    }
    typed = ["up", "--port", "0", "--page-port", str(page_port)]
    started = Terminal([sys.executable, "-m", "omnistage.server.cli", *typed], cache, columns=160)
    started.read_until("what the stages print", START_S)
    started.read_until("The page is at", START_S)
    yield started
    if psutil.pid_exists(started.pid):
        started.press_ctrl_c()
        started.wait(600)


def url_of(terminal: Terminal) -> str:
    (url,) = re.findall(r"Ready after \d+ s: (http://127.0.0.1:\d+)/v1", "\n".join(terminal.lines))
    return str(url)


def test_a_dozen_lines_lead_from_nothing_to_both_addresses(
    terminal: Terminal, page_port: int
) -> None:
    lines = terminal.lines
    assert len(lines) <= 12, lines
    assert lines[0].endswith(f": {MODEL} (text, audio, image); {NOTE}")
    for line, stage in zip(lines[1:5], ("thinker", "talker", "code2wav", "dit"), strict=True):
        assert f"{stage}: ready" in line
    assert any(f"The page is at http://127.0.0.1:{page_port}" in line for line in lines)


def test_it_answers_in_text_and_speech_and_has_its_page(terminal: Terminal, page_port: int) -> None:
    with httpx.Client(base_url=url_of(terminal), timeout=600) as client:
        messages = [{"role": "user", "content": "What is seven plus five?"}]
        answer = client.post("/v1/chat/completions", json={"messages": messages}).json()
        assert answer["model"] == MODEL
        assert answer["choices"][0]["message"]["content"] == "Seven plus five is twelve."
        speech = {"input": "Hello there.", "response_format": "wav"}
        assert client.post("/v1/audio/speech", json=speech).content[:4] == b"RIFF"
        (card,) = client.get("/v1/models").json()["data"]
        assert card["note"] == NOTE
    assert httpx.get(f"http://127.0.0.1:{page_port}/", timeout=600).status_code == 200


def test_what_stages_print_is_in_files_and_not_on_the_terminal(terminal: Terminal) -> None:
    (line,) = [line for line in terminal.lines if "what the stages print" in line]
    thinker = Path(line.split()[0]) / "thinker.log"
    assert "WARNING" in thinker.read_text()
    assert not any("WARNING" in line for line in terminal.lines)


def test_ctrl_c_ends_all_of_it(terminal: Terminal) -> None:
    children = psutil.Process(terminal.pid).children(recursive=True)
    assert len(children) >= 5  # four stages and the page
    terminal.press_ctrl_c()
    assert terminal.wait(600) == 0
    assert not psutil.wait_procs(children, timeout=600)[1]
    assert "Traceback" not in "\n".join(terminal.lines)
