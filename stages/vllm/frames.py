"""Whether vLLM samples the frames of a model's videos as a request asks it to."""

from typing import Any

from vllm.multimodal import video
from vllm.transformers_utils import processor

# vLLM's samplers that read `fps`, `min_frames` and `max_frames`.
SAMPLERS = ("qwen2_vl", "qwen3_vl")
UNASKED = (
    "fps, min_frames and max_frames are not supported: vLLM samples the videos of this model in "
    "its own way"
)


def samples_as_asked(model_config: Any) -> bool:
    """Whether this version has one of them for this model."""
    sampler_of = getattr(video, "get_video_loader_backend_for_processor", None)
    processor_of = getattr(processor, "get_video_processor_cls_name", None)
    if sampler_of is None or processor_of is None or not model_config.is_multimodal_model:
        return False
    name = processor_of(model_config)
    # For some models vLLM 0.27 and 0.28 answer with transformers' table of classes, and know none.
    return isinstance(name, str) and sampler_of(name) in SAMPLERS
