"""A program with an `Omni` on a terminal shows nothing of what its stages print."""

import sys
from pathlib import Path

from support.terminal import Terminal

SCRIPT = Path(__file__).parents[2] / "support" / "gateway" / "offline_script.py"
NOISE = 40


def run(tmp_path: Path, **more: str) -> tuple[int, list[str]]:
    """The exit code of the program, and the lines of its terminal."""
    environment = {"XDG_CACHE_HOME": str(tmp_path), "FAKE_SERVER_NOISE": str(NOISE), **more}
    terminal = Terminal([sys.executable, str(SCRIPT), "forget"], environment, columns=160)
    code = terminal.wait(600)
    return code, terminal.lines


def test_what_stages_print_goes_to_files(tmp_path: Path) -> None:
    code, lines = run(tmp_path)
    assert code == 0, lines
    assert not any("warns of" in line for line in lines)
    assert len(lines) <= 4, lines
    for name in ("thinker", "talker", "code2wav"):
        written = (tmp_path / "omnistage" / "logs" / f"{name}.log").read_text()
        assert written.count(f"{name} warns of") == NOISE


def test_a_stage_that_ends_is_named_with_where_its_lines_are(tmp_path: Path) -> None:
    code, lines = run(tmp_path, FAKE_SERVER_BROKEN="talker")
    assert code == 1
    shown = " ".join(lines)
    assert "StartFailed" in shown
    assert "stage talker ended" in shown


def test_debug_shows_every_line(tmp_path: Path) -> None:
    code, lines = run(tmp_path, OFFLINE_LOG_LEVEL="debug")
    assert code == 0
    assert sum("warns of" in line for line in lines) == 3 * NOISE
