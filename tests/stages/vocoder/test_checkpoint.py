"""One part of a checkpoint: what is read of which files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omnistage.stages.vocoder.checkpoint import read_config, read_part

CPU = torch.device("cpu")
TENSORS = {
    "decoder.one": torch.arange(3.0),
    "decoder.two.weight": torch.ones(2, dtype=torch.bfloat16),
    "encoder.one": torch.zeros(4),
    "decoders": torch.zeros(1),
}
PART = {"one": TENSORS["decoder.one"], "two.weight": TENSORS["decoder.two.weight"]}


def write_shards(folder: Path, shards: dict[str, str]) -> None:
    """An index, and of its files those that are given a name to end with `.safetensors`."""
    for shard in {name for name in shards.values() if name.endswith(".safetensors")}:
        save_file({name: TENSORS[name] for name in shards if shards[name] == shard}, folder / shard)
    index = json.dumps({"weight_map": shards})
    (folder / "model.safetensors.index.json").write_text(index)


def read(model: Path, folder: str = "") -> dict[str, torch.Tensor]:
    return dict(read_part(str(model), "decoder.", CPU, folder))


def assert_is_the_part(found: dict[str, torch.Tensor]) -> None:
    assert found.keys() == PART.keys()
    for name, expected in PART.items():
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected)


@pytest.mark.parametrize("folder", ["", "speech_tokenizer"])
def test_of_a_single_file_it_reads_what_begins_so(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    save_file(TENSORS, tmp_path / folder / "model.safetensors")
    assert_is_the_part(read(tmp_path, folder))


def test_of_an_index_it_reads_the_files_that_hold_some_of_it(tmp_path: Path) -> None:
    shards = dict(
        zip(TENSORS, ["a.safetensors", "b.safetensors", "not there", "none"], strict=True)
    )
    write_shards(tmp_path, shards)
    assert_is_the_part(read(tmp_path))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no speech_tokenizer/config\.json"):
        read_config(str(tmp_path), "speech_tokenizer")
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor model"):
        read(tmp_path)
    write_shards(tmp_path, {"decoder.one": "a.safetensors", "decoder.two.weight": "gone"})
    with pytest.raises(FileNotFoundError, match="lacks gone, which its index names"):
        read(tmp_path)
