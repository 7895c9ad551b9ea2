"""What a stage tells of a checkpoint while a library downloads it."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import wait_until

from omnistage.stages.messages.loading import (
    PLACE,
    Loading,
    Phase,
    begin_loading,
    read_loading,
    tell_loading,
)
from omnistage.stages.worker.process import download
from omnistage.stages.worker.process.download import download_told

MODEL = "owner/model"
MODEL_FILES = {"a.safetensors": 100, "b.safetensors": 50, "config.json": 7, "old/c.safetensors": 9}
PIPELINE_FILES = {
    "model_index.json": 1,
    "whole.safetensors": 900,
    "vae/model.safetensors": 100,
    "vae/model.fp16.safetensors": 30,
    "unet/model.safetensors": 50,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run directory of a stage `one`, whose process this is."""
    monkeypatch.setenv(PLACE, "")
    monkeypatch.setattr(download, "INTERVAL_S", 0.01)
    folder = tmp_path / "run"
    folder.mkdir()
    begin_loading(folder, "one")
    return folder


@pytest.fixture
def files() -> dict[str, int]:
    """Of the model at the hub, with their sizes."""
    return MODEL_FILES


@pytest.fixture
def blobs(files: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder of the model's files, each there under its hash."""

    def model_info(_: Any, name: str, **options: Any) -> Any:
        assert name == MODEL
        assert options["files_metadata"]
        siblings = [
            SimpleNamespace(rfilename=name, size=size, lfs=SimpleNamespace(sha256=sha(name)))
            for name, size in files.items()
        ]
        return SimpleNamespace(siblings=siblings)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--owner--model" / "blobs"
    folder.mkdir(parents=True)
    return folder


def sha(name: str) -> str:
    return name.replace("/", "-").removesuffix(".safetensors")


def told(run: Path) -> tuple[Phase, int, int]:
    note = read_loading(run, "one")
    assert note is not None
    return note.phase, note.done_bytes, note.total_bytes


def test_what_is_there_and_what_grows_is_told_of_all_weights(run: Path, blobs: Path) -> None:
    with download_told(MODEL):
        growing = blobs / f"{sha('a.safetensors')}.1234.incomplete"
        growing.write_bytes(bytes(30))
        wait_until(lambda: told(run) == (Phase.DOWNLOADING, 30, 150))
        growing.write_bytes(bytes(60))
        wait_until(lambda: told(run) == (Phase.DOWNLOADING, 60, 150))
        growing.rename(blobs / sha("a.safetensors"))
        (blobs / f"{sha('b.safetensors')}.incomplete").write_bytes(bytes(10))
        wait_until(lambda: told(run) == (Phase.DOWNLOADING, 110, 150))


@pytest.mark.parametrize("files", [PIPELINE_FILES])
def test_of_a_pipeline_only_its_components_count(run: Path, blobs: Path) -> None:
    with download_told(MODEL):
        (blobs / f"{sha('vae/model')}.1234.incomplete").write_bytes(bytes(30))
        wait_until(lambda: told(run) == (Phase.DOWNLOADING, 30, 150))


def test_a_stage_that_reads_already_is_not_said_to_download(run: Path, blobs: Path) -> None:
    before = set(threading.enumerate())
    with download_told(MODEL):
        (watch,) = set(threading.enumerate()) - before
        tell_loading(Phase.READING, 1, 2)
        (blobs / f"{sha('b.safetensors')}.incomplete").write_bytes(bytes(10))  # of another stage
        watch.join(600)
        assert told(run) == (Phase.READING, 1, 2)


def test_a_stage_that_begins_to_read_while_the_hub_is_asked_is_not_said_to_download(
    run: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: Any, **__: Any) -> Any:
        tell_loading(Phase.READING, 1, 2)
        return SimpleNamespace(siblings=[])

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    (blobs / f"{sha('b.safetensors')}.incomplete").write_bytes(bytes(10))
    before = set(threading.enumerate())
    with download_told(MODEL):
        (watch,) = set(threading.enumerate()) - before
        watch.join(600)
        assert told(run) == (Phase.READING, 1, 2)


def test_a_hub_that_does_not_say_the_sizes_is_no_failure(
    run: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: Any, **__: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    with download_told(MODEL):
        (blobs / f"{sha('a.safetensors')}.1234.incomplete").write_bytes(bytes(30))
        wait_until(lambda: told(run) == (Phase.DOWNLOADING, 0, 0))


def test_of_a_folder_nothing_is_downloaded(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    before = set(threading.enumerate())
    with download_told(str(folder)):
        assert set(threading.enumerate()) == before  # nobody looks
    assert read_loading(run, "one") == Loading()
