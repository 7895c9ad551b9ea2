"""How vLLM samples a model's videos."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.multimodal import video
from vllm.transformers_utils import processor

from omnistage.stages.messages.to_gateway import Sampler
from omnistage.stages.vllm.media.frames import sampler_of, samples_as_asked

CONFIG = SimpleNamespace(is_multimodal_model=True)
LOADERS = {"Qwen2VLVideoProcessor": "qwen2_vl", "Glm4vVideoProcessor": "opencv_dynamic"}


@pytest.mark.parametrize(
    ("name", "is_asked", "sampler"),
    [
        ("Qwen2VLVideoProcessor", True, "qwen2_vl"),
        ("Glm4vVideoProcessor", False, None),
        ("OtherVideoProcessor", False, "uniform"),
        (None, False, "uniform"),
        # transformers' table, of vLLM 0.28
        ({"torchvision": "Qwen2VLVideoProcessor"}, False, "uniform"),
    ],
)
def test_a_processor_s_name_says_which_sampler_it_has(
    monkeypatch: pytest.MonkeyPatch, name: Any, is_asked: bool, sampler: Sampler | None
) -> None:
    monkeypatch.setattr(video, "get_video_loader_backend_for_processor", LOADERS.get)
    monkeypatch.setattr(processor, "get_video_processor_cls_name", lambda config: name)
    assert samples_as_asked(CONFIG) is is_asked
    assert sampler_of(CONFIG, {}) == sampler


def test_a_sampler_that_an_operator_has_chosen_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnistage.stages.vllm.media.frames._loader_of", lambda config: "qwen2_vl")
    assert sampler_of(CONFIG, {"video_backend": "opencv"}) == "uniform"
    assert sampler_of(CONFIG, {"video_backend": "nemotron_vl"}) is None
    monkeypatch.setenv("VLLM_VIDEO_LOADER_BACKEND", "qwen3_vl")
    assert sampler_of(CONFIG, {}) == "qwen2_vl"  # the model's own comes first
    monkeypatch.setattr("omnistage.stages.vllm.media.frames._loader_of", lambda config: None)
    assert sampler_of(CONFIG, {}) == "qwen3_vl"
