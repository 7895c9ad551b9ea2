"""The folder of real sizes: what transformers reads out of it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoProcessor, Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "folder"
    write_real_size_folder(path)
    return path


def test_the_model_has_35_billion_parameters_and_no_file_of_them(folder: Path) -> None:
    with torch.device("meta"):
        model = Qwen3OmniMoeForConditionalGeneration(AutoConfig.from_pretrained(folder))
    sizes = {"thinker": 31.7e9, "talker": 3.3e9, "code2wav": 0.22e9}
    for name, size in sizes.items():
        parameters = model.get_submodule(name).parameters()
        assert sum(part.numel() for part in parameters) == pytest.approx(size, rel=0.03)
    assert not list(folder.glob("*.safetensors"))


def test_ids_are_those_of_the_config(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoProcessor.from_pretrained(folder).tokenizer
    told = {
        "<|im_start|>": config.im_start_token_id,
        "<|im_end|>": config.im_end_token_id,
        "user": config.user_token_id,
        "system": config.system_token_id,
        "assistant": config.assistant_token_id,
        "<tts_pad>": config.tts_pad_token_id,
        "<tts_text_bos>": config.tts_bos_token_id,
        "<tts_text_eod>": config.tts_eos_token_id,
        "<|audio_pad|>": config.thinker_config.audio_token_id,
        "<|image_pad|>": config.thinker_config.image_token_id,
        "<|video_pad|>": config.thinker_config.video_token_id,
    }
    for token, token_id in told.items():
        assert tokenizer(token).input_ids == [token_id]


def test_every_ordinary_id_is_text_and_a_word_is_one_token(folder: Path) -> None:
    tokenizer = AutoProcessor.from_pretrained(folder).tokenizer
    ids = list(range(300, 151643, 1009))
    assert all(len(text) >= 5 for text in tokenizer.batch_decode([[one] for one in ids]))
    assert tokenizer(tokenizer.decode(ids)).input_ids == ids
    line = "<|im_start|>user\nhé, 世界!<|im_end|>"
    assert tokenizer.decode(tokenizer(line).input_ids) == line


def test_words_for_prompts_are_a_token_each(folder: Path) -> None:
    words = (folder / "words.txt").read_text().split()
    tokenizer = AutoProcessor.from_pretrained(folder).tokenizer
    assert len(tokenizer(" " + " ".join(words[:50]))["input_ids"]) == 50
