"""What `make demo` asks of a server, and prints."""

from pathlib import Path

import pytest
import tiny_demo
from support.audio import samples_of
from support.server import TinyServer

pytestmark = pytest.mark.engine


def test_the_question_of_the_demo_is_answered_in_five_lines(
    server: TinyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_demo.ask(server.url)
    shown = "".join(capfd.readouterr()).splitlines()
    words = [line.split()[0] for line in shown]
    assert words == ["question", "answer", "answer.wav", "TTFP", "RTF"]
    sound = samples_of((tmp_path / tiny_demo.ANSWER).read_bytes())
    assert len(sound) / tiny_demo.RATE == pytest.approx(float(shown[2].split()[1]), abs=0.01)
    assert float(shown[3].split()[1]) > 0
    assert float(shown[4].split()[1]) > 0
