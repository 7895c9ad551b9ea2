"""Finished parts of a training come to another machine as their checkpoint has them."""

from pathlib import Path
from typing import Any

import keep
import pytest
import torch
import write


def state_of(module: str, *names: str) -> dict[str, Any]:
    """A training's state with these weights, and an optimizer's."""
    weights = {
        name: torch.randn(64, 32, generator=torch.Generator().manual_seed(1)) for name in names
    }
    optimizer = {"state": {0: {"exp_avg": torch.zeros(64, 32)}}}
    return {module: weights, "optimizer": optimizer, "at": {"step": 3, "spent": 1.0, "more": False}}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a thinker and drawings that are finished, and a talker that is not."""
    out = tmp_path / "out"
    (out / "image" / "checkpoint").mkdir(parents=True)
    (out / "image" / "checkpoint" / "model_index.json").write_text("{}")
    torch.save(state_of("reader", "thinker.lm_head.weight", "words.weight"), out / "thinker.pt")
    torch.save(state_of("speaker", "talker.codec_head.weight"), out / "talker.pt")
    for name in ("thinker", "drawings"):
        (out / f"{name}.done").touch()
    (out / "times.log").write_text("thinker.done: 840 s\n")
    return out


def test_what_comes_back_is_written_as_what_was_kept(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep, "PIECE", 1000)
    kept, back = tmp_path / "kept", tmp_path / "back"
    pieces = keep.keep(out, kept, keep.PARTS)
    assert len(pieces) > 1
    assert max(piece.stat().st_size for piece in pieces) <= 1000
    keep.bring_back(kept, back)
    module, prefix = write.STATES["thinker"]
    (before, after) = (write.part(one / "thinker.pt", module, prefix) for one in (out, back))
    assert before.keys() == after.keys() == {"lm_head.weight"}
    assert torch.equal(before["lm_head.weight"].bfloat16(), after["lm_head.weight"].bfloat16())
    assert after["lm_head.weight"].dtype == torch.bfloat16
    state = torch.load(back / "thinker.pt", weights_only=True)
    assert state.keys() == {"reader", "at"}
    assert state["reader"]["words.weight"].dtype == torch.float32
    assert (back / "image" / "checkpoint" / "model_index.json").read_text() == "{}"
    assert (back / "times.log").read_text() == "thinker.done: 840 s\n"


def test_a_part_that_is_not_finished_stays(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep.keep(out, tmp_path / "kept", ("thinker", "talker"))
    keep.bring_back(tmp_path / "kept", tmp_path / "back")
    assert "talker: not finished" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "back").iterdir()} == {
        *("thinker.pt", "thinker.done", "times.log")
    }
