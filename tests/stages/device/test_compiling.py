"""That what torch and Triton compile is counted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.callback import callback_handler

from omnistage.stages.device import compiling
from omnistage.stages.worker.process.compiles import PLACE, Compiles, begin_counting, read_compiles


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From nothing, as in a process of its own."""
    monkeypatch.setattr(compiling, "_counter", None)
    monkeypatch.setattr(callback_handler, "start_callbacks", [])
    monkeypatch.setattr(callback_handler, "end_callbacks", [])
    monkeypatch.setenv(PLACE, "")
    begin_counting(tmp_path, "text")
    yield
    torch._dynamo.reset_code_caches()


def test_what_torch_compiles_is_counted_once_and_while_it_runs(counted: None) -> None:
    seen = []

    def backend(graph: Any, _: Any) -> Any:
        seen.append(read_compiles())
        return graph

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiling.count_compiles()
    compiling.count_compiles()  # a plugin may be called twice
    double_compiled = torch.compile(double, backend=backend)
    assert double_compiled(torch.ones(3)).tolist() == [2, 2, 2]
    assert seen == [Compiles(1, 0)]
    assert read_compiles() == Compiles(1, 1)
    double_compiled(torch.ones(3))
    assert read_compiles() == Compiles(1, 1)


def test_a_process_of_no_stage_is_left_alone(
    counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLACE)
    compiling.count_compiles()
    assert callback_handler.start_callbacks == []


def test_kernels_of_triton_are_counted_and_whoever_listened_still_does(
    counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = pytest.importorskip("triton.knobs")
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **told: heard.append(told))
    compiling.count_compiles()
    compiling._count_kernels()
    told: dict[str, Any] = {"src": "a kernel", "metadata": {}, "metadata_group": {}, "times": None}
    knobs.compilation.listener(**told, cache_hit=False)
    knobs.compilation.listener(**told, cache_hit=True)  # it lies in the cache: nothing is compiled
    assert heard == [{**told, "cache_hit": False}, {**told, "cache_hit": True}]
    assert read_compiles() == Compiles(1, 1)
