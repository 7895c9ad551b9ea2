"""What the language model's stage says to the pipeline's."""

import numpy as np
import pytest

from omnistage.stages.omnigen2.encoded import (
    NEGATIVE,
    PROMPT,
    TextToEncode,
    announced,
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
