"""generation_config.json of Qwen3-TTS: how the reference samples."""

from omnistage.stage_configs.json_types import Json


def generation_config(max_new_tokens: int) -> Json:
    """The values of every published model."""
    return {
        "do_sample": True,
        "repetition_penalty": 1.05,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 50,
        "subtalker_dosample": True,
        "subtalker_temperature": 0.9,
        "subtalker_top_p": 1.0,
        "subtalker_top_k": 50,
        "max_new_tokens": max_new_tokens,
    }
