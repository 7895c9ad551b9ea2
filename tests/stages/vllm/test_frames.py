"""Whether vLLM samples a model's videos as a request asks it to."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.multimodal import video
from vllm.transformers_utils import processor

from omnistage.stages.vllm.frames import SAMPLERS, samples_as_asked


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen2VLVideoProcessor", True),
        ("OtherVideoProcessor", False),
        (None, False),
        ({"torchvision": "Qwen2VLVideoProcessor"}, False),  # transformers' table, of vLLM 0.28
    ],
)
def test_a_name_that_is_known_says_so_and_what_is_no_name_does_not(
    monkeypatch: pytest.MonkeyPatch, name: Any, expected: bool
) -> None:
    known = {"Qwen2VLVideoProcessor": SAMPLERS[0]}
    monkeypatch.setattr(video, "get_video_loader_backend_for_processor", known.get)
    monkeypatch.setattr(processor, "get_video_processor_cls_name", lambda config: name)
    assert samples_as_asked(SimpleNamespace(is_multimodal_model=True)) is expected
