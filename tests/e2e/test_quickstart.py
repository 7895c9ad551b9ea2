"""The quick start is answered as the README and docs/quickstart.md show it."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.audio import samples_of
from support.server import TinyServer
from support.snippets import ROOT, SERVER, check_json, send

pytestmark = pytest.mark.engine

PAGES = ["README.md", "docs/quickstart.md"]
SECONDS = 4.0


def commands(page: str) -> list[str]:
    """What is asked with curl."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith("curl") and "-d" in block]


@pytest.mark.parametrize("page", PAGES)
def test_the_answer_is_the_one_that_is_shown(page: str, server: TinyServer, tmp_path: Path) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    answer = send(shlex.split(commands(page)[0].replace(SERVER, server.url)), tmp_path)
    check_json(answer.text, shown.replace('"tiny"', json.dumps(server.model)))


@pytest.mark.parametrize("page", PAGES)
def test_the_speech_is_as_long_as_is_said(page: str, server: TinyServer, tmp_path: Path) -> None:
    answer = send(shlex.split(commands(page)[1].replace(SERVER, server.url)), tmp_path)
    assert answer.status_code == 200
    if answer.headers["content-type"] == "application/json":
        assert json.loads(answer.text)["choices"][0]["message"]["audio"]["data"]
    else:
        seconds = len(samples_of((tmp_path / "hello.wav").read_bytes())) / 24000
        assert 0 < seconds <= SECONDS
