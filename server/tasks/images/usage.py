"""Usage of requests for images.

An image token is a square of pixels whose side the stage reports: what its denoiser takes as one.
Words are counted by the stage, with its pipeline's tokenizer.
"""

import math
from collections.abc import Iterable
from typing import Any

from omnistage.server.tasks.chat.usage import token_usage

Size = tuple[int, int]


def image_tokens(sizes: Iterable[Size], token_side: int) -> int:
    """The tokens of images by width and height."""
    return sum(
        math.ceil(width / token_side) * math.ceil(height / token_side) for width, height in sizes
    )


def images_usage(
    text_tokens: int, given: Iterable[Size], made: Iterable[Size], token_side: int
) -> dict[str, Any]:
    """OpenAI's usage of an image request."""
    input_images, output = image_tokens(given, token_side), image_tokens(made, token_side)
    return {
        "input_tokens": text_tokens + input_images,
        "input_tokens_details": {"text_tokens": text_tokens, "image_tokens": input_images},
        "output_tokens": output,
        "output_tokens_details": {"text_tokens": 0, "image_tokens": output},
        "total_tokens": text_tokens + input_images + output,
    }


def chat_usage(
    text_tokens: int, given: Iterable[Size], made: Iterable[Size], token_side: int
) -> dict[str, Any]:
    """The same as usage of a chat completion."""
    usage = images_usage(text_tokens, given, made, token_side)
    return token_usage(
        usage["input_tokens"],
        usage["output_tokens"],
        usage["input_tokens_details"],
        usage["output_tokens_details"],
    )


def with_image(usage: dict[str, Any], made: Iterable[Size], token_side: int) -> dict[str, Any]:
    """Return a chat's usage with the images that were drawn of its words."""
    num_tokens = image_tokens(made, token_side)
    return {
        **usage,
        "completion_tokens": usage["completion_tokens"] + num_tokens,
        "total_tokens": usage["total_tokens"] + num_tokens,
        "completion_tokens_details": {
            **usage["completion_tokens_details"],
            "image_tokens": num_tokens,
        },
    }
