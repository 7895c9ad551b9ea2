"""`make test` fails if either half of the suite does, and prints what both said."""

import sys

import pytest
from suite import ENGINES, NICENESS, OTHERS, run_beside

SAY = "import os, sys; print(os.getpriority(os.PRIO_PROCESS, 0)); sys.exit(int(sys.argv[1]))"


def said_by(code: int) -> list[str]:
    return [sys.executable, "-c", SAY, str(code)]


@pytest.mark.parametrize(("codes", "wanted"), [((0, 0), 0), ((1, 0), 1), ((0, 2), 1), ((3, 5), 1)])
def test_a_failure_of_either_half_is_one_of_the_suite(
    codes: tuple[int, int], wanted: int, capfd: pytest.CaptureFixture[str]
) -> None:
    first, other = map(said_by, codes)
    assert run_beside(first, other) == wanted
    of_first, of_other = map(int, capfd.readouterr().out.split())
    assert of_other == min(of_first + NICENESS, 19)


def test_each_test_is_in_one_half() -> None:
    assert ENGINES[-2:] == ("-m", "engine")
    assert OTHERS[OTHERS.index("-m", 2) + 1] == "not engine"
