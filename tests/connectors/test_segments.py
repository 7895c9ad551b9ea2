"""Segments of shared memory that killed processes leave are removed with their run."""

from pathlib import Path

import pytest

from omnistage.connectors import sweep
from omnistage.connectors.segments import ENDING, PLACE, note_segments, remove_segments

OURS = "vllm_dist_41-tp:0-[0-1]-cpushm_0"
OTHERS = ("vllm_dist_410-tp:0-[0-1]-cpushm_0", "psm_1")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shared memory with segments of ours and of others."""
    folder = tmp_path / "memory"
    folder.mkdir()
    for name in (OURS, *OTHERS):
        (folder / name).touch()
    monkeypatch.setattr(remove_segments, "__defaults__", (folder,))
    return folder


def test_a_runs_segments_go_with_its_folders(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sweep.make_run_directory(tmp_path, tmp_path)
    monkeypatch.setenv(PLACE, str(run.path / f"talker{ENDING}"))
    note_segments("vllm_dist_41-tp:")
    note_segments("vllm_dist_41-pp:")
    run.remove()
    assert {path.name for path in memory.iterdir()} == set(OTHERS)
    assert not run.path.exists()


def test_a_stage_that_starts_again_leaves_one_generation(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / f"talker{ENDING}"
    monkeypatch.setenv(PLACE, str(note))
    note_segments("vllm_dist_41-")
    remove_segments(note)
    assert not (memory / OURS).exists()
    assert not note.exists()
    remove_segments(note)  # there is none any more


@pytest.mark.parametrize("line", ["", "\n", "vllm_dist_4", "../memory/vllm\n"])
def test_nothing_is_removed_for_half_a_line_or_another_folder(
    line: str, memory: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    note.write_text(line)
    remove_segments(note)
    assert {path.name for path in memory.iterdir()} == {OURS, *OTHERS}


def test_a_process_of_no_stage_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    note_segments("vllm_dist_41-")
