"""The headers of safetensors files: names, and bytes once loaded."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omnistage.stages.device.stored_weights import stored_tensors


def names(folder: Path) -> list[str]:
    return sorted(tensor.name for tensor in stored_tensors(folder))


def save(folder: Path, files: Collection[str]) -> None:
    """In each file a tensor of the file's own name."""
    for name in files:
        save_file({name: torch.zeros(2)}, folder / name, {"format": "pt"})


@pytest.mark.parametrize(
    ("kept", "loaded", "num_bytes"),
    [
        (torch.float32, torch.bfloat16, 24),
        (torch.bfloat16, torch.float32, 48),
        (torch.float64, torch.float16, 24),
        (torch.uint8, torch.bfloat16, 12),
        (torch.int64, torch.bfloat16, 96),
        (torch.float8_e4m3fn, torch.bfloat16, 12),
    ],
)
def test_only_wide_floats_take_the_dtype_of_the_model(
    kept: torch.dtype, loaded: torch.dtype, num_bytes: int, tmp_path: Path
) -> None:
    save_file({"a": torch.zeros(3, 4, dtype=kept)}, tmp_path / "model.safetensors")
    (tensor,) = stored_tensors(tmp_path)
    assert (tensor.name, tensor.num_bytes(loaded)) == ("a", num_bytes)


@pytest.mark.parametrize(
    ("files", "counted"),
    [
        ({"model.safetensors", "consolidated.safetensors"}, ["model.safetensors"]),
        ({"a-1.safetensors", "a-2.safetensors"}, ["a-1.safetensors", "a-2.safetensors"]),
        ({"model.safetensors", "model.fp16.safetensors"}, ["model.safetensors"]),
        ({"a.fp16.safetensors", "a.safetensors"}, ["a.safetensors"]),
        (set(), []),
    ],
)
def test_weights_that_are_there_twice_count_once(
    files: Collection[str], counted: list[str], tmp_path: Path
) -> None:
    save(tmp_path, files)
    assert names(tmp_path) == counted


def test_an_index_says_which_files_count(tmp_path: Path) -> None:
    save(tmp_path, ["a-1.safetensors", "a-2.safetensors", "other.safetensors"])
    shards = ["a-1.safetensors", "a-2.safetensors", "a-3-that-is-not-here.safetensors"]
    index = {"weight_map": {name: name for name in shards}}
    (tmp_path / "a.safetensors.index.json").write_text(json.dumps(index))
    assert names(tmp_path) == shards[:2]


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert names(tmp_path / "nowhere") == []
