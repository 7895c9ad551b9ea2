"""The quick start is answered as docs/quickstart.md shows it."""

import json
import re
from pathlib import Path

import pytest
from support.audio import samples_of
from support.server import TinyServer
from support.snippets import ROOT, SERVER, check_json, send, words_of

pytestmark = pytest.mark.engine

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
SECONDS = 4.0


def commands() -> list[str]:
    """Return the commands of curl that send a body."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [block for block in blocks if block.startswith("curl") and "-d" in block]


def test_the_answer_is_the_one_that_is_shown(server: TinyServer, tmp_path: Path) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    answer = send(words_of(commands()[0].replace(SERVER, server.url)), tmp_path)
    check_json(answer.text, shown.replace('"tiny"', json.dumps(server.model)))


def test_the_speech_is_as_long_as_is_said(server: TinyServer, tmp_path: Path) -> None:
    answer = send(words_of(commands()[1].replace(SERVER, server.url)), tmp_path)
    assert answer.status_code == 200
    seconds = len(samples_of((tmp_path / "hello.wav").read_bytes())) / 24000
    assert 0 < seconds <= SECONDS
