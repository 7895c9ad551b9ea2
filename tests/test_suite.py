"""`make test` fails if a part of the suite does, and prints what all of them said."""

import sys
from pathlib import Path

import pytest
from suite import ENGINES, LAST, LAST_ROOMS, NICENESS, OTHERS, run_beside

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


def test_each_test_is_in_one_part() -> None:
    ignored = [f"--ignore={room}" for room in LAST_ROOMS]
    assert ENGINES[3:] == ("-m", "engine", *ignored)
    assert LAST[3:] == ("-m", "engine", *LAST_ROOMS)
    assert OTHERS[OTHERS.index("-m", 2) + 1] == "not engine"
    assert all((ROOT / room).is_dir() for room in LAST_ROOMS)
