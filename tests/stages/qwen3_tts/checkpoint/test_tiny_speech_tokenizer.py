"""The tiny speech tokenizer. That the qwen-tts package reads it shows what it recorded with it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from omnistage.stages.qwen3_tts.checkpoint.speech_tokenizer_config import (
    tiny_config,
    write_real_size_speech_tokenizer_config,
)
from omnistage.stages.qwen3_tts.checkpoint.tiny_speech_tokenizer import write_tiny_speech_tokenizer
from omnistage.stages.vocoder.checkpoint import read_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech_tokenizer")
    write_tiny_speech_tokenizer(folder, seed=0)
    return folder


def test_it_is_the_same_for_a_seed(folder: Path, tmp_path: Path) -> None:
    own = (folder / "model.safetensors").read_bytes()
    assert len(own) < 1_000_000
    for name, seed in (("again", 0), ("other", 1)):
        write_tiny_speech_tokenizer(tmp_path / name, seed)
        written = (tmp_path / name / "model.safetensors").read_bytes()
        assert (written == own) == (seed == 0)


def test_it_has_the_names_of_a_checkpoint_both_ways(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert {name.split(".")[0] for name in tensors} == {"encoder", "decoder"}
    shapes = {name: tuple(one.shape) for name, one in tensors.items()}
    for number in range(3):
        place = f"decoder.quantizer.rvq_rest.vq.layers.{number}._codebook"
        assert shapes[f"{place}.embedding_sum"] == (64, 16)
        assert shapes[f"{place}.cluster_usage"] == (64,)
    for name in ("first", "rest"):
        assert shapes[f"decoder.quantizer.rvq_{name}.input_proj.weight"] == (16, 32, 1)
        assert shapes[f"decoder.quantizer.rvq_{name}.output_proj.weight"] == (32, 16, 1)
    assert shapes["decoder.pre_conv.conv.weight"] == (48, 32, 3)
    assert shapes["encoder.downsample.conv.weight"] == (32, 32, 4)
    assert not any(name.startswith("encoder.decoder") for name in shapes)
    assert not any(name.endswith("codebooks") for name in shapes)
    assert {one.dtype for one in tensors.values()} == {torch.float32}


def test_the_real_one_sets_all_that_the_tiny_one_does(tmp_path: Path) -> None:
    write_real_size_speech_tokenizer_config(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "preprocessor_config.json",
    ]
    real, tiny = read_config(str(tmp_path)), tiny_config()
    assert real.keys() == tiny.keys()
    for part in ("encoder_config", "decoder_config"):
        assert real[part].keys() >= tiny[part].keys()
    assert (real["encoder_valid_num_quantizers"], real["decoder_config"]["codebook_size"]) == (
        16,
        2048,
    )
