"""Fixtures of the tests of this folder."""

import time
from pathlib import Path
from typing import Any

import pytest
from support.bench.profiles import run, span, write


@pytest.fixture
def stopped(tmp_path: Path) -> dict[str, Any]:
    """Give what stages say: of one trace, and of two ranks whose clocks have another base."""
    own = [span(0.0, 100.0), run("a", 10.0, 20.0)]
    ranks = [span(-5.0, 95.0), run("b", 15.0, 20.0)]
    base_ns = time.time_ns()
    shifted = base_ns + 5_000
    files = [write(tmp_path / f"t{rank}.json.gz", ranks, shifted) for rank in range(2)]
    vocoder = {"file": str(write(tmp_path / "v.json.gz", own, base_ns))}
    folder = {"folder": str(tmp_path), "files": list(map(str, files))}
    return {"talker@0": folder, "code2wav": vocoder}
