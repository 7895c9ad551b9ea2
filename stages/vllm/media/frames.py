"""How vLLM chooses the frames of a model's videos, as the gateway does it."""

import os
from collections.abc import Mapping
from typing import Any

from vllm.multimodal import video
from vllm.transformers_utils import processor

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_gateway import Sampler

# vLLM's names of its samplers.
SAMPLERS: Mapping[str | None, Sampler] = {
    "qwen2_vl": "qwen2_vl",
    "qwen3_vl": "qwen3_vl",
    "opencv": "uniform",
    None: "uniform",
}
AS_ASKED = ("qwen2_vl", "qwen3_vl")  # those that read `fps`, `min_frames` and `max_frames`
UNASKED = (
    "fps, min_frames and max_frames are not supported: vLLM samples the videos of this model in "
    "its own way"
)
VARIABLE = "VLLM_VIDEO_LOADER_BACKEND"


def sampler_of(model_config: Any, options: JsonMap) -> Sampler | None:
    """Return the sampler of a model, with its operator's options of videos; None: it is unknown."""
    chosen = options.get("video_backend") or _loader_of(model_config)
    return SAMPLERS.get(chosen or os.environ.get(VARIABLE))


def samples_as_asked(model_config: Any) -> bool:
    """Say whether this version samples the frames of this model as a request says."""
    return model_config.is_multimodal_model and _loader_of(model_config) in AS_ASKED


def _loader_of(model_config: object) -> str | None:
    """Return vLLM's loader of videos for a model; None: its default."""
    loader_of = getattr(video, "get_video_loader_backend_for_processor", None)
    processor_of = getattr(processor, "get_video_processor_cls_name", None)
    if loader_of is None or processor_of is None:
        return None
    name = processor_of(model_config)
    # For some models vLLM 0.27 and 0.28 answer with transformers' table of classes, and know none.
    loader: str | None = loader_of(name) if isinstance(name, str) else None
    return loader
