"""Chats that want images and nothing else."""

import pytest

from omnistage.server.tasks.chat_task import wants_images
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

BOTH, IMAGES, TEXT = ["text", "image"], ["image"], ["text"]


@pytest.mark.parametrize(
    ("graph", "modalities", "expected"),
    [
        # Images of requests' words: a chat is one such request.
        ("qwen_image", None, True),
        ("qwen_image", BOTH, True),
        ("qwen_image", TEXT, False),
        # Words or an image, as the model chooses; or an image in any case.
        ("omnigen2", None, False),
        ("omnigen2", BOTH, False),
        ("omnigen2", IMAGES, True),
        ("omnigen2", TEXT, False),
        # Words, or an image where there may be one.
        ("bagel", None, False),
        ("bagel", BOTH, False),
        ("bagel", IMAGES, True),
        # Images of the answer's words: never alone.
        ("qwen3_omni_qwen_image", BOTH, False),
        ("qwen3_omni_qwen_image", IMAGES, False),
        # No images: they are refused where images are made.
        ("vllm_text", None, False),
        ("vllm_text", BOTH, True),
    ],
)
def test_an_answer_of_images_alone_is_what_the_graph_and_the_modalities_make_it(
    graph: str, modalities: list[str] | None, expected: bool
) -> None:
    assert wants_images(modalities, load_graph(GRAPHS / f"{graph}.yaml")) is expected
