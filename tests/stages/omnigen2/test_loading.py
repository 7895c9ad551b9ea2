"""A published folder, which names modules of its own, read by our classes."""

from pathlib import Path

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler
from transformers import Qwen2_5_VLForConditionalGeneration

from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.lumina2.transformer import OmniGen2Transformer2DModel
from omnistage.stages.omnigen2.pipeline import OmniGen2Pipeline

CLASS = f"{OmniGen2Pipeline.__module__}.OmniGen2Pipeline"


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_components_are_of_the_classes_that_the_pipelines_class_declares(
    load_format: str, tiny_omnigen2: Path
) -> None:
    options = LoadOptions(pipeline_class=CLASS, load_format=load_format)
    loaded = options.load(str(tiny_omnigen2))
    assert type(loaded.pipeline.transformer) is OmniGen2Transformer2DModel
    assert type(loaded.pipeline.scheduler) is FlowMatchEulerDiscreteScheduler
    assert type(loaded.pipeline.mllm) is Qwen2_5_VLForConditionalGeneration
    assert list(loaded.parts.dit) == ["transformer"]
    assert (list(loaded.parts.encoder), list(loaded.parts.vae)) == (["mllm"], ["vae"])


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_what_a_stage_upstream_replaces_is_not_read(load_format: str, tiny_omnigen2: Path) -> None:
    options = LoadOptions(pipeline_class=CLASS, load_format=load_format)
    pipeline = options.read(str(tiny_omnigen2), without=("mllm", "processor"))
    assert pipeline.mllm is pipeline.processor is None
    with pytest.raises(ValueError, match="prompt_embeds"):
        pipeline(prompt="a cat")
