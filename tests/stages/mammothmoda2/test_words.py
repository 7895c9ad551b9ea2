"""What transformers and vLLM read of a checkpoint that answers with words."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

from omnistage.stage_configs.json_types import Json
from omnistage.stages.mammothmoda2.tokens import MARKS, WORDS, MammothTokenizer
from omnistage.stages.mammothmoda2.words_folder import (
    qwen3_vl_config,
    write_tokenizer,
    write_words_folder,
)

# In the order in which they are merged; "abc" is of either of two pairs.
MERGED = ("ab", "bc", "abc", "abcd", " a", "ö", "狐", "狐狸", "  ", "  a")
TEXTS = (
    "abcd bcd ab abcabc",
    "Löwe 狐狸狐, Lo\u0308we  a",
    "it's 12 cats\n\n and\r\n abc",
    "<|im_start|>user\nabc<|im_end|>",
)


def test_a_folder_of_the_tiny_checkpoint_is_a_qwen3_vl_of_its_sizes(
    tiny_mammothmoda2: Path, tmp_path: Path
) -> None:
    write_words_folder(str(tiny_mammothmoda2), tmp_path)
    made = AutoConfig.from_pretrained(tmp_path)
    assert made.architectures == ["OmnistageMammothModa2Words"]
    assert (made.text_config.vocab_size, made.text_config.hidden_size) == (288, 64)
    assert made.text_config.rope_parameters["mrope_section"] == [6, 5, 5]
    assert made.vision_config.deepstack_visual_indexes == [0]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert made.image_token_id == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert tokenizer.chat_template == (tiny_mammothmoda2 / "chat_template.jinja").read_text()
    end = json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
    assert end == tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])


def test_texts_have_the_ids_that_tiktoken_gives_them(tmp_path: Path) -> None:
    words = [bytes([one]) for one in range(256)] + [one.encode() for one in MERGED]
    lines = (f"{base64.b64encode(one).decode()} {rank}" for rank, one in enumerate(words))
    (tmp_path / WORDS).write_text("\n".join(lines))
    (tmp_path / "mammothu_vision_tokens.txt").write_text("")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content[0].text }}")
    write_tokenizer(tmp_path / WORDS, tmp_path)
    found = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    wanted = MammothTokenizer(tmp_path, len(words) + len(MARKS))
    for text in TEXTS:
        ids = found.encode(text).ids
        assert ids == wanted.of([("user", text)]), text
        assert any(one >= 256 for one in ids), text


def test_a_checkpoint_without_what_answers_need_is_refused(
    tiny_mammothmoda2: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_mammothmoda2, folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no preprocessor_config\.json: it cannot answer"):
        write_words_folder(str(folder), tmp_path)


def test_a_backbone_that_is_not_served_answers_nothing(tiny_mammothmoda2: Path) -> None:
    llm: Json = json.loads((tiny_mammothmoda2 / "config.json").read_text())["llm_config"]
    with pytest.raises(ValueError, match="served is 'mammothmoda2_qwen3_vl'"):
        qwen3_vl_config({**llm, "model_type": "mammothmoda2_qwen2_5_vl"})
