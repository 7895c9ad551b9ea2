"""Texts and images of conversations."""

import base64
from typing import Any

from references.omnigen2_drawings import noise
from support.media.pictures import file_of

from omnistage.stages.vllm.answers.conversations import image_urls, last_text


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
