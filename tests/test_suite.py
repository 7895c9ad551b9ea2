"""`make test` fails if a part of the suite does, and prints what all of them said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from suite import ENGINES, LAST, MARK, NICENESS, OTHERS, SHARING, TESTS, Command, run_beside

ROOT = Path(__file__).parent.parent
SAY = "import os, sys; print(os.getpriority(os.PRIO_PROCESS, 0)); sys.exit(int(sys.argv[1]))"
WAIT = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


def said_by(code: int) -> list[str]:
    return [sys.executable, "-c", SAY, str(code)]


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [((0, 0, 0), 0), ((1, 0, 0), 1), ((0, 2, 0), 1), ((3, 5, 0), 1), ((0, 0, 4), 1)],
)
def test_a_failure_of_any_part_is_one_of_the_suite(
    codes: tuple[int, int, int], wanted: int, capfd: pytest.CaptureFixture[str]
) -> None:
    first, other, last = map(said_by, codes)
    assert run_beside(first, other, last) == wanted
    of_first, of_other, of_last = map(int, capfd.readouterr().out.split())
    assert of_other == min(of_first + NICENESS, 19)
    assert of_last == of_first


@pytest.mark.parametrize("is_first", [True, False])
def test_the_last_part_begins_beside_the_half_that_still_runs(
    is_first: bool, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    waiting = [sys.executable, "-c", WAIT, str(begun)]
    ending = [sys.executable, "-c", ""]
    first, other = (waiting, ending) if is_first else (ending, waiting)
    assert run_beside(first, other, ["touch", str(begun)]) == 0


def selection(part: Command) -> Command:
    """The command of a part up to the marks of its tests."""
    return part[: part.index("-m", 2) + 2]


def test_each_test_is_in_one_part() -> None:
    parts = [selection(part)[-1] for part in (ENGINES, LAST, OTHERS)]
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


@pytest.mark.parametrize("part", [ENGINES, LAST])
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
    assert passed == {f"test_of_a_{'session' if part is LAST else 'module'}"}
