"""What `make demo` asks of a server, and prints."""

from pathlib import Path

import pytest
import small_demo
from support.media.audio import samples_of
from support.oracles.meaning import SmallServer, assert_said

pytestmark = pytest.mark.engine


def test_the_question_of_the_demo_is_answered_in_five_lines(
    small: SmallServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    small_demo.ask(small.url)
    shown = "".join(capfd.readouterr()).splitlines()
    words = [line.split()[0] for line in shown]
    assert words == ["question", "answer", "answer.wav", "TTFP", "RTF"]
    assert shown[1].split(maxsplit=1)[1] == repr("The circle is red.")
    data = (tmp_path / small_demo.ANSWER).read_bytes()
    assert len(samples_of(data)) / small_demo.RATE == pytest.approx(
        float(shown[2].split()[1]), abs=0.01
    )
    assert_said(data, "The circle is red.")
    assert float(shown[3].split()[1]) > 0
    assert float(shown[4].split()[1]) > 0
