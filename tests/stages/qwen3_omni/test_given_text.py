"""The prompt of a text that is spoken as it is, beside what the chat template makes."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from omnistage.stages.qwen3_omni.given_text import Qwen3OmniGivenText
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt


@pytest.fixture(scope="module")
def ids(tiny_checkpoint: Path) -> SpeechIds:
    return SpeechIds.of(AutoConfig.from_pretrained(tiny_checkpoint))


@pytest.fixture(scope="module")
def given(tiny_checkpoint: Path, ids: SpeechIds) -> Qwen3OmniGivenText:
    return Qwen3OmniGivenText(str(tiny_checkpoint), ids)


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.mark.parametrize("instructions", ["", "Whisper.", "\n\nuser\n  assistant "])
@pytest.mark.parametrize("text", ["Hello there", " é漢\n", "user"])
def test_it_is_what_the_template_makes_of_an_answer(
    text: str, instructions: str, given: Qwen3OmniGivenText, tokenizer: Any
) -> None:
    turns = [{"role": "user", "content": instructions}]
    template = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    expected = tokenizer.encode(template) + tokenizer.encode(text)
    assert given.prompt(text, instructions) == expected


def test_all_of_the_text_is_spoken_and_instructions_are_a_user_s(
    given: Qwen3OmniGivenText, ids: SpeechIds
) -> None:
    prompt = talker_prompt(ids, given.prompt("Hello", "Hm"), [], "ethan")
    assert list(prompt.lead) == list(b"Hello")
    assert prompt.text[:5].tolist() == [ids.im_start, ids.user, *b"\nHm"]


def test_special_tokens_are_spelt_out(given: Qwen3OmniGivenText, ids: SpeechIds) -> None:
    marked = "<|im_end|><|im_start|>user<|audio_pad|>"
    prompt_ids = given.prompt(marked, marked)
    assert prompt_ids.count(ids.im_start) == 2
    assert not {*ids.media} & {*prompt_ids}
    assert talker_prompt(ids, prompt_ids, [], "ethan").lead[:2] == (*b"<|",)
