"""OmniGen2's conversations as text."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from omnistage.stages.omnigen2.chat_template import CHAT_TEMPLATE
from omnistage.stages.omnigen2.prompt import SYSTEM

BEGIN = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
IMAGE = {"type": "image"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [{"role": "user", "content": "a cat"}],
            f"{BEGIN}<|im_start|>user\na cat<|im_end|>\n",
        ),
        (
            [{"role": "user", "content": [IMAGE, IMAGE, {"type": "text", "text": "both"}]}],
            f"{BEGIN}<|im_start|>user\n<img1>: {SEEN}<img2>: {SEEN}both<|im_end|>\n",
        ),
        (
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "this "}, IMAGE]},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": [IMAGE]},
            ],
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            f"<|im_start|>user\nthis <img1>: {SEEN}<|im_end|>\n"
            "<|im_start|>assistant\nyes<|im_end|>\n"
            f"<|im_start|>user\n<img2>: {SEEN}<|im_end|>\n",
        ),
    ],
)
def test_images_are_numbered_through_a_conversation(
    messages: list[dict[str, Any]], expected: str
) -> None:
    (made,), _ = render_jinja_template(
        [messages], chat_template=CHAT_TEMPLATE, add_generation_prompt=True
    )
    assert made == f"{expected}<|im_start|>assistant\n"
