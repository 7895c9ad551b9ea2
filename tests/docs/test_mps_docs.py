"""The reproduction in docs/mps.md runs, and finds nothing where there is no share."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "mps.md").read_text()


def test_the_reproduction_runs_and_all_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(program, "unwritten.py", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["0% unwritten"] * 3
