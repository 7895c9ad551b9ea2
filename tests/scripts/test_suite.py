"""`make test` fails if a part of the suite does, and prints what all of them said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from suite import ENGINES, MARK, OTHERS, SHARED, SHARING, TESTS, Command, run_beside

ROOT = Path(__file__).parents[2]
SAY = "import sys; print(sys.argv[2]); sys.exit(int(sys.argv[1]))"
WAIT = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
BEGIN = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch()"
END = 'mv "$0" "$1" || ! touch "$1"'  # fails where nothing has begun


def said_by(name: str, code: int) -> list[str]:
    return [sys.executable, "-c", SAY, str(code), name]


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [((0, 0, 0), 0), ((1, 0, 0), 1), ((0, 2, 0), 1), ((3, 5, 0), 1), ((0, 0, 4), 1)],
)
def test_a_failure_of_any_part_is_one_of_the_suite(
    codes: tuple[int, int, int], wanted: int, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ["engines", "shared", "others"]
    first, *others = map(said_by, names, codes)
    assert run_beside(first, others) == wanted
    assert capfd.readouterr().out.split() == names


def test_others_run_one_after_another_while_the_first_runs(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    first = [sys.executable, "-c", WAIT, str(ended)]
    one = [sys.executable, "-c", BEGIN, str(begun)]
    another = ["sh", "-c", END, str(begun), str(ended)]
    assert run_beside(first, [one, another]) == 0


def selection(part: Command) -> Command:
    """The command of a part up to the marks of its tests."""
    return part[: part.index("-m", 2) + 2]


def test_each_test_is_in_one_part() -> None:
    parts = [selection(part)[-1] for part in (ENGINES, SHARED, OTHERS)]
    assert parts == ["engine and not shared", "engine and shared", "not engine"]


def test_files_that_start_engines_are_known_by_their_own_text() -> None:
    """No test gets its mark from a file that the part of engines does not name."""
    marking = {str(file) for file in TESTS.rglob("*.py") if MARK in file.read_text()}
    assert marking == set(ENGINES[len(selection(ENGINES)) :])
    assert len(marking) > 50


SERVER = """
import pytest

@pytest.fixture(scope="{scope}")
def server() -> None: ...
"""
TEST = """
def test_of_a_{scope}(server: None) -> None: ...
pytestmark = pytest.mark.engine
"""


@pytest.mark.parametrize("part", [ENGINES, SHARED])
def test_a_server_of_the_session_is_started_in_one_part_only(part: Command, tmp_path: Path) -> None:
    room = tmp_path / SHARING
    room.mkdir(parents=True)
    (room / "conftest.py").write_text(SERVER.format(scope="session"))
    (room / "test_module.py").write_text((SERVER + TEST).format(scope="module"))
    (room / "test_session.py").write_text("import pytest\n" + TEST.format(scope="session"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n engine\n repeat\n shared\n slow")
    done = subprocess.run(
        [*selection(part), SHARING, "-p", "conftest", "-p", "no:cacheprovider", "-v"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = {line.split("::")[1].split()[0] for line in done.stdout.splitlines() if "::" in line}
    assert passed == {f"test_of_a_{'session' if part is SHARED else 'module'}"}
