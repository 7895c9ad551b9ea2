"""The configuration of Qwen3-Omni-30B-A3B: what its config.json says, in real_config.json."""

from pathlib import Path

from transformers import Qwen3OmniMoeConfig

from omnistage.stages.checkpoint.files import read_json


def real_config() -> Qwen3OmniMoeConfig:
    """The whole model's config; bfloat16."""
    return Qwen3OmniMoeConfig(**read_json(Path(__file__).with_name("real_config.json")))
