"""Tokens of images, by the side that the stage reports."""

import pytest

from omnistage.server.tasks.images.usage import chat_usage, image_tokens, images_usage, with_image
from omnistage.stages.messages.to_gateway import TOKEN_SIDE


@pytest.mark.parametrize(
    ("size", "side", "tokens"),
    [
        ((1024, 1024), 16, 4096),
        ((1024, 1024), 32, 1024),
        ((17, 16), 16, 2),
        ((1, 1), 32, 1),
    ],
)
def test_an_image_has_as_many_tokens_as_squares_of_the_side_cover_it(
    size: tuple[int, int], side: int, tokens: int
) -> None:
    assert image_tokens([size], side) == tokens


def test_every_usage_counts_given_and_made_images_by_the_same_side() -> None:
    given, made = [(64, 64)], [(64, 32), (32, 32)]
    usage = images_usage(5, given, made, 32)
    assert (usage["input_tokens"], usage["output_tokens"]) == (5 + 4, 3)
    chat = chat_usage(5, given, made, 32)
    assert (chat["prompt_tokens"], chat["completion_tokens"]) == (9, 3)
    assert images_usage(5, given, made, TOKEN_SIDE)["output_tokens"] == 12
    words = {"completion_tokens": 2, "total_tokens": 4, "completion_tokens_details": {}}
    assert with_image(words, made, 32)["total_tokens"] == 4 + 3
