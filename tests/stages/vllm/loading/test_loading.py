"""What an engine tells of its loading, by vLLM's load formats and log."""

import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.logger
from safetensors.torch import save_file
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader

from omnistage.stages.messages.loading import PLACE, Loading, Phase, begin_loading, read_loading
from omnistage.stages.messages.start_failure import read_start_failure
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.loading.loading import (
    FAILURES,
    LOAD_FORMAT,
    PHASES,
    CountedLoader,
    FollowedRecords,
    load_format_of,
    register_loading,
)

VLLM = Path(str(find_spec("vllm").origin)).parent  # type: ignore[union-attr]
SAID_IN = ("v1/worker", "v1/engine", "v1/executor", "compilation")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a stage `one` whose engine this process is; vLLM's log is followed."""
    monkeypatch.setenv(PLACE, "")
    begin_loading(tmp_path, "one")
    before = logging.getLogRecordFactory()
    register_loading()
    yield tmp_path
    logging.setLogRecordFactory(before)


def said(message: str, *arguments: Any, exc_info: bool = False) -> None:
    logging.getLogger("vllm.v1.anywhere").error(message, *arguments, exc_info=exc_info)


def test_the_words_by_which_phases_are_known_are_vllm_s() -> None:
    sources = "".join(
        path.read_text() for folder in SAID_IN for path in (VLLM / folder).rglob("*.py")
    )
    for words in (*(words for words, _ in PHASES), *FAILURES):
        assert words in sources, words


def test_the_phases_of_an_engine_are_told(directory: Path) -> None:
    seen = []
    for words, _ in PHASES:
        said(f"{words} of %s", "a model")
        told = read_loading(directory, "one")
        assert told is not None
        seen.append(told.phase)
    assert seen == [phase for _, phase in PHASES]
    said("Anything else")
    assert read_loading(directory, "one") == Loading(seen[-1])


def test_an_engine_s_own_error_is_the_reason_of_its_stage(directory: Path) -> None:
    for message, error in (
        ("a warning on the way", KeyError("recovered")),
        ("EngineCore failed to start.", ValueError("the KV cache has no room")),
    ):
        try:
            raise error
        except (KeyError, ValueError):
            said(message, exc_info=True)
    assert read_start_failure(directory, "one") == "the KV cache has no room"


def test_vllm_s_log_is_followed_once_and_not_outside_of_a_stage(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = logging.getLogRecordFactory()
    assert isinstance(following, FollowedRecords)
    register_loading()
    assert logging.getLogRecordFactory() is following
    monkeypatch.delenv(PLACE)
    logging.setLogRecordFactory(logging.LogRecord)
    register_loading()
    assert logging.getLogRecordFactory() is logging.LogRecord


def test_vllm_s_log_is_followed_after_vllm_has_configured_it_anew(directory: Path) -> None:
    vllm.logger._configure_vllm_root_logger()
    said("Starting torch.compile")
    assert read_loading(directory, "one") == Loading(Phase.COMPILING)


def test_other_logs_are_not_followed(directory: Path) -> None:
    logging.getLogger("omnistage").error("Starting torch.compile")
    assert read_loading(directory, "one") == Loading()


def test_weights_are_counted_while_vllm_reads_them(directory: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {f"layer.{i}": torch.zeros(256) for i in range(4)}
    save_file(tensors, folder / "model.safetensors")
    loader = get_model_loader(LoadConfig(load_format=LOAD_FORMAT))
    assert isinstance(loader, CountedLoader)
    model = SimpleNamespace(model=str(folder), revision=None)
    seen = loader.get_all_weights(model, torch.nn.Module())
    first, _ = next(seen)
    assert read_loading(directory, "one") == Loading(Phase.READING, 0, 4096)
    assert {first, *(name for name, _ in seen)} == set(tensors)
    assert read_loading(directory, "one") == Loading(Phase.READING, 4096, 4096)


@pytest.mark.parametrize(
    ("asked", "model", "taken"),
    [
        ("auto", "owner/model", LOAD_FORMAT),
        ("auto", "/a/folder", LOAD_FORMAT),
        ("auto", "s3://bucket/model", "auto"),
        ("sharded_state", "/a/folder", "sharded_state"),
    ],
)
def test_only_vllm_s_usual_format_is_counted(asked: str, model: str, taken: str) -> None:
    assert load_format_of(asked, model) == taken


def test_an_unknown_engine_argument_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        ValueError, match=r"no engine argument max_num_seq; did you mean max_num_seqs"
    ):
        make_engine(AsyncLLM, "/no/model", {"max_num_seq": 1}, None)
