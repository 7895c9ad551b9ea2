"""A part of the embedded model is trained on from its weights, and the others are kept."""

import sys
from pathlib import Path

import pytest
import torch
import write
from language.tokens import make_tokenizer
from loop import Run, begin
from safetensors.torch import load_file
from sizes import small_config
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

from omnistage.stage_configs.models.embedded import CHECKPOINTS

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
    config = small_config(make_tokenizer())
    talker = modeling.Qwen3OmniMoeTalkerForConditionalGeneration._from_config(config.talker_config)
    begin(talker, "talker", SMALL)
    talker.codec_head.weight.data += 1
    state = {f"talker.{name}": one for name, one in talker.state_dict().items()}
    torch.save({"speaker": state}, tmp_path / "talker.pt")
    folder = tmp_path / "written"
    given = ["write", "--out", str(tmp_path), "--folder", str(folder), "--checkpoint", str(SMALL)]
    monkeypatch.setattr(sys, "argv", given)
    write.main()
    made = load_file(folder / "model.safetensors")
    for part in ("thinker", "talker", "code2wav"):
        for name, one in load_file(SMALL / f"{part}.safetensors").items():
            is_trained = name == "talker.codec_head.weight"
            assert torch.equal(made[name], (one.float() + is_trained).bfloat16()), name
