"""Streams of high priority: where there is one, and in what order it waits."""

from typing import Any

import pytest
import torch
from support.cuda_streams import NotedStream

from omnistage.stage_configs.mps import PRIORITY
from omnistage.stages.device.priority import launched_on, priority_stream


@pytest.mark.parametrize("asked", ["0", "5"])
def test_a_cpu_has_none(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(PRIORITY, asked)
    assert priority_stream(torch.device("cpu")) is None
    with launched_on(None):
        pass


def test_a_gpu_has_one_if_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def make(device: torch.device, **more: Any) -> torch.device:
        made.append(more)
        return device

    monkeypatch.setattr(torch.cuda, "Stream", make)
    monkeypatch.delenv(PRIORITY, raising=False)
    assert priority_stream(torch.device("cuda")) is None
    for asked in ("0", "3", "5"):
        monkeypatch.setenv(PRIORITY, asked)
        assert (priority_stream(torch.device("cuda")) is None) == (asked == "0")
    assert made == [{"priority": -3}, {"priority": -5}]


def test_work_on_a_stream_is_behind_what_was_launched_and_before_what_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    outer, high = NotedStream("outer", notes), NotedStream("high", notes)

    class Entered:
        def __init__(self, stream: NotedStream) -> None:
            self._name = stream.name

        def __enter__(self) -> None:
            notes.append(f"on {self._name}")

        def __exit__(self, *_: object) -> None:
            notes.append(f"off {self._name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: outer)
    monkeypatch.setattr(torch.cuda, "stream", Entered)
    with launched_on(high):  # type: ignore[arg-type]
        notes.append("work")
    assert notes == [
        "high waits for outer",
        "on high",
        "work",
        "off high",
        "outer waits for high",
    ]
