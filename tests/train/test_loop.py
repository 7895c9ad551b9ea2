"""A part of the embedded model is trained on from its weights, and the others are kept."""

import sys
from pathlib import Path

import pytest
import torch
import write
from loop import Run
from safetensors.torch import load_file
from sizes import small_config
from tokens import make_tokenizer
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from omnistage.stage_configs.embedded import CHECKPOINTS

SMALL = CHECKPOINTS / "small"


def test_training_goes_on_from_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    config = small_config(make_tokenizer())
    talker = modeling.Qwen3OmniMoeTalkerForConditionalGeneration._from_config(config.talker_config)
    fresh = talker.codec_head.weight.detach().clone()
    Run(tmp_path, tmp_path, 1, 1.0, torch.device("cpu")).begin(talker, "talker")
    assert torch.equal(talker.codec_head.weight, fresh)
    Run(tmp_path, tmp_path, 1, 1.0, torch.device("cpu"), checkpoint=SMALL).begin(talker, "talker")
    kept = load_file(SMALL / "talker.safetensors")
    assert torch.equal(talker.codec_head.weight, kept["talker.codec_head.weight"].float())
    with pytest.raises(RuntimeError):
        Run(tmp_path, tmp_path, 1, 1.0, torch.device("cpu"), checkpoint=SMALL).begin(
            talker, "code2wav"
        )


def test_parts_without_a_state_are_written_as_the_checkpoint_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = load_file(SMALL / "talker.safetensors")
    trained = {f"talker.{name.removeprefix('talker.')}": one for name, one in weights.items()}
    name = "talker.codec_head.weight"
    trained[name] = trained[name] + 1
    torch.save({"speaker": trained}, tmp_path / "talker.pt")
    folder = tmp_path / "written"
    given = ["write", "--out", str(tmp_path), "--folder", str(folder), "--checkpoint", str(SMALL)]
    monkeypatch.setattr(sys, "argv", given)
    write.main()
    made = load_file(folder / "model.safetensors")
    assert torch.equal(made[name], trained[name].bfloat16())
    for part in ("thinker", "code2wav"):
        for key, one in load_file(SMALL / f"{part}.safetensors").items():
            assert torch.equal(made[key], one), key
