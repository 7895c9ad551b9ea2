"""Weights of a process as a folder that stages can load."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from omnistage.stages.device import shared_weights as module
from omnistage.stages.device.shared_weights import shared_weights
from omnistage.stages.device.stored_weights import stored_shapes


def test_all_weights_are_in_the_folder_in_files_of_a_bounded_size_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 100)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors.index.json").write_text("not ours")
    weights = {f"layer.{n}": torch.full((4, 5), float(n)) for n in range(3)}
    tied = weights["layer.0"]

    def given() -> Iterator[tuple[str, torch.Tensor]]:
        yield from weights.items()
        yield "tied", tied
        yield "turned", tied.T

    with shared_weights(given(), model, str(tmp_path)) as folder:
        assert stored_shapes(folder) == {
            **dict.fromkeys(weights, (4, 5)),
            "tied": (4, 5),
            "turned": (5, 4),
        }
        files = sorted(folder.glob("*.safetensors"))
        assert len(files) == 3
        with safe_open(files[1], framework="pt") as opened:
            assert opened.get_tensor("layer.2").eq(2).all()
        assert (folder / "config.json").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
