"""How a computation becomes a CUDA graph, with stand-ins for CUDA's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from omnistage.stages.device.recording import record


class NotedStream:
    """Notes what waits for what."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name, self._notes = name, notes

    def wait_stream(self, other: "NotedStream") -> None:
        self._notes.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_it_runs_once_beside_the_stream_before_it_is_recorded(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    notes: list[Any] = []
    outer, side = NotedStream("outer", notes), NotedStream("side", notes)

    @contextmanager
    def noted(*given: Any, **more: Any) -> Iterator[None]:
        notes.append(("in", *given, more))
        yield
        notes.append("out")

    def compute() -> str:
        notes.append("computed")
        return "written"

    monkeypatch.setattr(torch.cuda, "Stream", lambda: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: outer)
    monkeypatch.setattr(torch.cuda, "stream", noted)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "graph", noted)
    recorded: tuple[Any, str] = record(compute, "pool", capture_error_mode=mode)
    assert recorded == ("graph", "written")
    assert notes == [
        "side waits for outer",
        ("in", side, {}),
        "computed",
        "out",
        "outer waits for side",
        ("in", "graph", "pool", {"capture_error_mode": mode}),
        "computed",
        "out",
    ]
