"""`omnistage tiny`: what it writes, what it never overwrites, what it leaves after a failure."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import logging as transformers_logging
from typer.testing import CliRunner, Result

from omnistage.server import cli
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.models.random_weights import (
    MARK,
    RANDOM_NOTE,
    has_random_weights,
    note_of,
)
from omnistage.stage_configs.pick import GRAPHS, pick_graph


def tiny(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["tiny", *arguments])


@contextlib.contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Lets no file of this process grow beyond so many bytes."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_model_that_it_cannot_write_is_refused(tmp_path: Path) -> None:
    result = tiny("qwen9", str(tmp_path))
    assert result.exit_code == 1
    allowed = ", ".join(sorted(name for _, one in FAMILIES.usable() for name in one.tiny))
    assert "qwen3-omni" in allowed
    assert result.output == f"error: unknown model 'qwen9'; allowed: {allowed}\n"


def test_it_says_what_it_wrote_and_what_to_type_next(tmp_path: Path) -> None:
    folder = tmp_path / "a tiny one"
    command = [sys.executable, "-m", "omnistage.server.cli", "tiny", "qwen3-omni", str(folder)]
    done = subprocess.run([*command, "--seed", "3"], capture_output=True, text=True, check=True)
    assert (folder / "model.safetensors").is_file()
    size = sum(len(data) for data in contents(folder).values()) / 1e6
    first = f"wrote qwen3-omni to {folder} ({size:.1f} MB; {RANDOM_NOTE})"
    assert done.stdout.splitlines() == [first, f"next: omnistage serve '{folder}'"]
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["qwen3-omni", "embedding", "flux"])
def test_weights_are_marked_as_random(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    result = tiny(name, str(folder))
    assert result.exit_code == 0, result.output
    graph = load_graph(pick_graph(str(folder), 0).file, str(folder))
    assert has_random_weights(graph)
    assert RANDOM_NOTE in note_of(graph)
    (folder / MARK).unlink()
    assert not has_random_weights(graph)
    assert b".unfinished-" not in b"".join(contents(folder).values())


def test_dummy_weights_are_random_ones_and_those_of_a_stage_s_own_checkpoint_too(
    tmp_path: Path,
) -> None:
    graph = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", "m")
    assert note_of(graph) == ""
    assert note_of(graph.with_engine(load_format="dummy")) == RANDOM_NOTE
    (tmp_path / MARK).touch()
    talker = graph.stages["talker"].model_copy(update={"model": str(tmp_path)})
    assert has_random_weights(graph.model_copy(update={"stages": {"talker": talker}}))
    both = StageGraph.model_validate({**graph.model_dump(by_alias=True), "note": "text only"})
    assert note_of(both.with_engine(load_format="dummy")) == f"text only; {RANDOM_NOTE}"


def test_it_writes_an_embedding_model_that_is_served_as_one(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    assert tiny("embedding", str(folder)).exit_code == 0
    graph = load_graph(pick_graph(str(folder), 0).file, str(folder))
    assert graph.outputs == {"embedding": "embedding"}
    assert [stage.kind for stage in graph.stages.values()] == ["vllm.embedding"]


def test_it_writes_the_real_sizes_without_weights(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    result = tiny("qwen3-omni", str(folder), "--real-size")
    assert result.exit_code == 0, result.output
    assert (folder / "config.json").is_file()
    assert not (folder / "model.safetensors").exists()
    assert "its real sizes, without weights" in result.output
    assert f"next: omnistage serve {folder} --load-format dummy" in result.output


def test_a_model_without_a_real_size_is_refused(tmp_path: Path) -> None:
    result = tiny("flux", str(tmp_path / "a"), "--real-size")
    assert result.exit_code == 1
    assert "no real size" in result.output
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["qwen3-omni", "flux", "embedding"])
def test_a_folder_that_is_not_empty_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("a downloaded model's")
    (tmp_path / "model.safetensors").write_bytes(b"71 GB")
    before = contents(tmp_path)
    result = tiny(name, str(tmp_path))
    assert result.exit_code == 1
    wanted = f"error: {tmp_path} is not empty: take another folder, or add --force\n"
    assert result.output == wanted
    assert contents(tmp_path) == before


def test_with_force_only_files_of_the_same_names_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("another model's")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "LICENSE").write_text("theirs")
    result = tiny("qwen3-omni", str(tmp_path), "--force")
    assert result.exit_code == 0, result.output
    after = contents(tmp_path)
    assert after["notes/mine.txt"] == b"mine"
    assert after["LICENSE"] == b"theirs"
    assert b"qwen3_omni_moe" in after["config.json"]
    other = tmp_path.with_name("other")
    assert tiny("qwen3-omni", str(other)).exit_code == 0
    assert set(after) - set(contents(other)) == {"notes/mine.txt", "LICENSE"}


def test_a_folder_that_is_empty_is_written_into(tmp_path: Path) -> None:
    assert tiny("embedding", str(tmp_path)).exit_code == 0
    assert (tmp_path / "config.json").is_file()


def test_a_place_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder, why in (
        (Path("/proc/nowhere"), "/proc/nowhere: No such file or directory"),
        (file, f"{file}: File exists"),
        (file / "below", f"{file / 'below'}: Not a directory"),
    ):
        result = tiny("embedding", str(folder))
        assert (result.exit_code, result.output) == (1, f"error: cannot write to {folder}: {why}\n")


def test_a_folder_without_permission_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: object) -> None:  # root may write anywhere
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "mkdir", refuse)
    folder = tmp_path / "shut"
    result = tiny("embedding", str(folder))
    wanted = f"error: cannot write to {folder}: {folder}: Permission denied\n"
    assert (result.exit_code, result.output) == (1, wanted)


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_full_disk_is_named_in_one_line_and_leaves_no_half_of_a_model(
    is_forced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the command has it, where it is the one that imports transformers.
    monkeypatch.setattr(transformers_logging, "_tqdm_active", False)
    folder = tmp_path / "a" / "b"
    if is_forced:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("before")
    with largest_file(500_000):
        result = tiny("qwen3-omni", str(folder), *(["--force"] if is_forced else []))
    assert result.exit_code == 1
    assert result.output.startswith(f"error: cannot write to {folder}: ")
    assert "File too large" in result.output
    assert result.output.count("\n") == 1
    if is_forced:
        assert contents(folder) == {"config.json": b"before"}
    else:
        assert not (tmp_path / "a").exists()
