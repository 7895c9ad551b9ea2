"""Usage of requests for images.

An image token is 16 x 16 pixels: what the denoisers of Qwen-Image, Flux and Stable Diffusion 3 take
as one. Words are counted by the stage, with its pipeline's tokenizer.
"""

import math
from collections.abc import Iterable
from typing import Any

from omnistage.server.chat.usage import token_usage

TOKEN_SIDE = 16

Size = tuple[int, int]


def image_tokens(sizes: Iterable[Size]) -> int:
    """The tokens of images by width and height."""
    return sum(
        math.ceil(width / TOKEN_SIDE) * math.ceil(height / TOKEN_SIDE) for width, height in sizes
    )


def images_usage(text_tokens: int, given: Iterable[Size], made: Iterable[Size]) -> dict[str, Any]:
    """OpenAI's usage of an image request."""
    input_images, output = image_tokens(given), image_tokens(made)
    return {
        "input_tokens": text_tokens + input_images,
        "input_tokens_details": {"text_tokens": text_tokens, "image_tokens": input_images},
        "output_tokens": output,
        "output_tokens_details": {"text_tokens": 0, "image_tokens": output},
        "total_tokens": text_tokens + input_images + output,
    }


def chat_usage(text_tokens: int, given: Iterable[Size], made: Iterable[Size]) -> dict[str, Any]:
    """The same as usage of a chat completion."""
    usage = images_usage(text_tokens, given, made)
    return token_usage(
        usage["input_tokens"],
        usage["output_tokens"],
        usage["input_tokens_details"],
        usage["output_tokens_details"],
    )


def with_image(usage: dict[str, Any], made: Iterable[Size]) -> dict[str, Any]:
    """Return a chat's usage with the images that were drawn of its words."""
    num_tokens = image_tokens(made)
    return {
        **usage,
        "completion_tokens": usage["completion_tokens"] + num_tokens,
        "total_tokens": usage["total_tokens"] + num_tokens,
        "completion_tokens_details": {
            **usage["completion_tokens_details"],
            "image_tokens": num_tokens,
        },
    }
