"""What the language model's stage says to the pipeline's."""

import base64
from typing import Any

import numpy as np
import pytest
from references.omnigen2_drawings import noise
from support.pictures import file_of

from omnistage.stages.omnigen2.encoded import (
    NEGATIVE,
    PROMPT,
    TextToEncode,
    announced,
    image_urls,
    last_text,
    spans_of,
)

SEEN = 9


@pytest.mark.parametrize(
    ("ids", "spans"),
    [
        ([], []),
        ([1, 2], []),
        ([SEEN], [(0, 1)]),
        ([1, SEEN, SEEN, 2, SEEN], [(1, 3), (4, 5)]),
    ],
)
def test_runs_of_an_images_tokens_are_found(ids: list[int], spans: list[tuple[int, int]]) -> None:
    assert spans_of(np.array(ids) == SEEN) == spans


def test_rows_of_images_are_not_counted() -> None:
    prompt = {"prompt_token_ids": [1, SEEN, SEEN, 2]}
    texts = {
        PROMPT: [TextToEncode.of_chat(prompt, SEEN)],
        NEGATIVE: [TextToEncode.of_ids([1, 2, 3])],
    }
    rows = announced(texts).rows
    assert (rows[PROMPT].lengths, rows[PROMPT].left_out) == ([2], [[(1, 3)]])
    assert (rows[NEGATIVE].lengths, rows[NEGATIVE].left_out) == ([3], [])
    assert rows[PROMPT].mask == "prompt_attention_mask"


def test_images_of_a_conversation_come_in_order_and_its_words_are_the_last() -> None:
    images = [noise((8, 6), number) for number in range(3)]
    urls = [f"data:image/png;base64,{base64.b64encode(file_of(one)).decode()}" for one in images]
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [*parts[:2], {"type": "text", "text": "a hat"}]},
        {"role": "assistant", "content": "Here."},
        {"role": "user", "content": [parts[2], {"type": "text", "text": "and a dog"}]},
        {"role": "assistant", "content": None},
    ]
    assert image_urls(messages) == urls
    assert last_text(messages) == "and a dog"
    assert last_text([{"role": "user", "content": "red"}]) == "red"
