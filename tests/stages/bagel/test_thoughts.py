"""What is read and thought before an image, by a request's other arguments."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Tokenizer

from omnistage.stages.bagel.chats import CHAT_TEMPLATE, texts_of
from omnistage.stages.bagel.texts import REASONING, START, THINKING, text_ids
from omnistage.stages.bagel.thoughts import ReadPrompt, Thinking
from omnistage.stages.worker.failure import RequestError

TEXTS = ["A red fox.", "In the snow?\n ", " 'Yes', and \u00e9 \u72d0"]


@pytest.fixture(scope="module")
def tokenizer(tiny_bagel: Path) -> Any:
    return Qwen2Tokenizer.from_pretrained(tiny_bagel)


@pytest.mark.parametrize("thinks", [False, True])
def test_the_template_writes_texts_as_they_are_read(thinks: bool, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": one} for one in TEXTS]
    made = tokenizer.apply_chat_template(
        messages,
        chat_template=CHAT_TEMPLATE,
        add_generation_prompt=True,
        enable_thinking=thinks,
        return_dict=False,
    )
    read = [REASONING, *TEXTS] if thinks else TEXTS
    ids = [one for text in read for one in text_ids(tokenizer, text)]
    assert made == [*ids, tokenizer.convert_tokens_to_ids(START)]


def test_parts_of_a_message_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
    ]
    assert texts_of(messages) == ["a\nb", ""]


@pytest.mark.parametrize("thinks", [False, True])
def test_guidance_leaves_the_last_text_and_what_follows(thinks: bool, tokenizer: Any) -> None:
    read = ReadPrompt.of(tokenizer, TEXTS, thinks)
    before = [THINKING, *TEXTS[:-1]] if thinks else TEXTS[:-1]
    assert read.num_prefix == sum(len(text_ids(tokenizer, one)) for one in before)
    thought = read.followed(tokenizer, "hm")
    assert thought.ids == [*read.ids, *text_ids(tokenizer, "hm")]
    assert thought.num_prefix == read.num_prefix


def test_what_is_too_long_is_refused() -> None:
    read = ReadPrompt([1] * 10, 0)
    read.check(15, 4)
    for room, more in ((10, 0), (14, 4)):
        with pytest.raises(RequestError, match="has 10 tokens") as refusal:
            read.check(room, more)
        assert refusal.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("extra", "num_tokens"),
    [
        ({}, 0),
        ({"max_think_tokens": 9}, 0),
        ({"think": True}, 999),
        ({"think": True, "max_think_tokens": 9, "cfg_interval": [0, 1]}, 8),
        ({"think": True, "max_think_tokens": 0}, 0),
        ({"think": None}, 0),
    ],
    ids=str,
)
def test_a_thought_is_as_long_as_the_authors(extra: dict[str, Any], num_tokens: int) -> None:
    assert Thinking.of(extra).num_tokens == num_tokens


@pytest.mark.parametrize(
    "extra",
    [
        {"think": "yes"},
        {"think": 1},
        {"max_think_tokens": -1},
        {"max_think_tokens": 1.5},
        {"think_temperature": -0.1},
        {"contexts": []},
        {"prefix_tokens": 1},
        {"thoughts": ["a"]},
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_by_its_name(extra: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refusal:
        Thinking.of(extra)
    assert refusal.value.param == f"extra.{next(iter(extra))}"
