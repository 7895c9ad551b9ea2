"""Traces of torch's profiler: where they are, what is in them, what is refused."""

import errno
import gzip
import json
from pathlib import Path

import pytest
import torch

from omnistage.stages.device.profiler import Profiler
from omnistage.stages.worker.failure import RequestError


def test_a_trace_has_what_was_computed_between_start_and_stop(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path / "traces", "singer")
    torch.ones(2).cos()
    begun = profiler.start(None)
    torch.ones(2).sin()
    assert profiler.stop() == begun
    torch.ones(2).tan()
    file = Path(begun["file"])
    assert (file.parent, file.name.split("-")[0]) == (tmp_path / "traces", "singer")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events}
    assert "aten::sin" in names
    assert not {"aten::cos", "aten::tan"} & names


def test_replicas_write_apart_under_one_prefix(tmp_path: Path) -> None:
    for name in ("singer@0", "singer@1"):
        profiler = Profiler(tmp_path, name)
        profiler.start("both")
        profiler.stop()
    first, second = sorted(file.name for file in tmp_path.iterdir())
    assert first.startswith("both-singer@0-")
    assert second.startswith("both-singer@1-")


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    below = Profiler(tmp_path / "file" / "traces", "singer")
    with pytest.raises(RequestError, match="file/traces: Not a directory") as caught:
        below.start(None)
    assert (caught.value.status, caught.value.code) == (500, "profile_not_written")
    with pytest.raises(RequestError, match="no profile runs"):
        below.stop()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    profiler = Profiler(tmp_path, "singer")
    profiler.start(None)
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", full)
    with pytest.raises(RequestError, match=f"{tmp_path}: No space left") as caught:
        profiler.stop()
    assert (caught.value.status, caught.value.code) == (500, "profile_not_written")
    monkeypatch.undo()
    profiler.start(None)  # the one that could not be written does not run on
    profiler.stop()


def test_a_second_start_and_a_stop_without_a_start_are_refused(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, "singer")
    with pytest.raises(RequestError, match="no profile runs"):
        profiler.stop()
    profiler.start(None)
    with pytest.raises(RequestError, match="runs already"):
        profiler.start(None)
    profiler.stop()
    with pytest.raises(RequestError, match="no profile runs"):
        profiler.stop()
