"""The folders of real sizes: what transformers reads out of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoProcessor, Qwen2_5OmniForConditionalGeneration

from omnistage.stages.qwen2_5_omni.checkpoint.real_size import write_3b_folder, write_7b_folder


@pytest.mark.parametrize(
    ("write", "sizes"),
    [
        (write_7b_folder, {"thinker": 8.93e9, "talker": 1.35e9, "token2wav": 0.45e9, "": 10.73e9}),
        (write_3b_folder, {"thinker": 4.70e9, "talker": 0.385e9, "token2wav": 0.45e9, "": 5.54e9}),
    ],
    ids=["7b", "3b"],
)
def test_it_has_the_published_size_and_no_file_of_weights(
    tmp_path: Path, write: Callable[[Path], None], sizes: dict[str, float]
) -> None:
    write(tmp_path)
    with torch.device("meta"):
        model = Qwen2_5OmniForConditionalGeneration(AutoConfig.from_pretrained(tmp_path))
    for name, size in sizes.items():
        parameters = model.get_submodule(name).parameters()
        assert sum(part.numel() for part in parameters) == pytest.approx(size, rel=0.01)
    assert not list(tmp_path.glob("*.safetensors"))
    voices = torch.load(tmp_path / "spk_dict.pt", weights_only=True)
    rows = model.config.thinker_config.text_config.vocab_size
    assert all(voice["bos_token"] < rows for voice in voices.values())
    assert all(voice["cond"].shape == (1, 192) for voice in voices.values())


def test_ids_are_those_of_the_config(tmp_path: Path) -> None:
    write_7b_folder(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path).thinker_config
    tokenizer = AutoProcessor.from_pretrained(tmp_path).tokenizer
    told = {
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        "<tool_call>": 151657,
        "<|AUDIO|>": config.audio_token_index,
        "<|IMAGE|>": config.image_token_index,
        "<|VIDEO|>": config.video_token_index,
        "<|audio_bos|>": config.audio_start_token_id,
        "<|audio_eos|>": config.audio_end_token_id,
    }
    for token, token_id in told.items():
        assert tokenizer(token).input_ids == [token_id]
    words = (tmp_path / "words.txt").read_text().split()
    assert len(tokenizer(" " + " ".join(words[:50])).input_ids) == 50
