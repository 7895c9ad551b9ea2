"""The quick start is answered as docs/quickstart.md shows it."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.oracles.meaning import SmallServer, assert_said
from support.repository.snippets import ROOT, SERVER, check_json, send, words_of

pytestmark = pytest.mark.engine

PAGE = (ROOT / "docs" / "quickstart.md").read_text()


def commands() -> list[str]:
    """Return the commands of curl that send a body."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [block for block in blocks if block.startswith("curl") and "-d" in block]


def test_the_answer_is_the_one_that_is_shown(small: SmallServer, tmp_path: Path) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    answer = send(words_of(commands()[0].replace(SERVER, small.url)), tmp_path)
    check_json(answer.text, shown)


def test_the_speech_is_what_was_written(small: SmallServer, tmp_path: Path) -> None:
    answer = send(words_of(commands()[1].replace(SERVER, small.url)), tmp_path)
    assert answer.status_code == 200
    (text,) = re.findall(r'"input": "(.*?)"', commands()[1])
    assert_said((tmp_path / "hello.wav").read_bytes(), text)


def test_the_picture_is_seen_as_is_said(
    small: SmallServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"^It prints `(.*?)`", PAGE, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(program.replace(SERVER, small.url), names)
    names["client"].close()
    assert capsys.readouterr().out == f"{shown}\n"
