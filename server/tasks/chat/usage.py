"""The usage of chat and text completions, in OpenAI's shape."""

from collections.abc import Mapping

from omnistage.stage_configs.json_types import Json, JsonMap


def token_usage(
    num_in: int, num_out: int, details_in: Mapping[str, int], details_out: Mapping[str, int]
) -> Json:
    """The tokens that went in and came out, each with its details; those not given are 0."""
    return {
        "prompt_tokens": num_in,
        "completion_tokens": num_out,
        "total_tokens": num_in + num_out,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0, **details_in},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            **details_out,
        },
    }


def usage_of(usage: JsonMap, num_frames: int) -> Json:
    """The tokens of all stages, from vLLM's usage; a codec frame is one audio token."""
    prompt = usage.get("prompt_tokens") or 0
    text = usage.get("completion_tokens") or 0
    prompt_details = usage.get("prompt_tokens_details") or {}
    media = prompt_details.get("multimodal_tokens") or {}
    details = usage.get("completion_tokens_details") or {}
    details_in = {
        "cached_tokens": prompt_details.get("cached_tokens") or 0,
        "audio_tokens": media.get("audio", 0),
        "image_tokens": media.get("image", 0) + media.get("video", 0),
        "text_tokens": prompt - sum(media.values()),
    }
    details_out = {
        "reasoning_tokens": details.get("reasoning_tokens") or 0,
        "audio_tokens": num_frames,
        "text_tokens": text,
    }
    return token_usage(prompt, text + num_frames, details_in, details_out)
