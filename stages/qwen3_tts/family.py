"""Qwen3-TTS as a family: its kinds, and what serves and writes its models."""

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import (
    Kind,
    Payload,
    PublishedReference,
    payloads,
    vocoder_kind,
)
from omnistage.stage_configs.rules.own_arguments import TALKER

HERE = "omnistage.stages.qwen3_tts"
MODEL_TYPE = "qwen3_tts"
TINY_HIDDEN_SIZE = 256  # below this a checkpoint is one of ours: it runs anywhere


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """By the model's type, its size and the machine; more than one GPU is no use to it."""
    config = checkpoint.config
    if config.get("model_type") != MODEL_TYPE:
        return None
    is_small = _is_tiny(config) or not num_gpus
    return Picked(GRAPHS / ("qwen3_tts_tiny.yaml" if is_small else "qwen3_tts.yaml"))


def _is_tiny(config: JsonMap) -> bool:
    hidden_size: int = config.get("talker_config", {}).get("hidden_size", TINY_HIDDEN_SIZE)
    return hidden_size < TINY_HIDDEN_SIZE


TINY = {  # each by the name of its writers
    "qwen3-tts": "custom_voice",
    "qwen3-tts-0.6b": "small_custom_voice",
    "qwen3-tts-design": "voice_design",
    "qwen3-tts-base": "base",
    "qwen3-tts-base-0.6b": "small_base",
}
WRITERS = f"{HERE}.checkpoint.writers"

FAMILY = Family(
    name="qwen3_tts",
    kinds={
        "qwen3_tts.talker": Kind(
            f"{HERE}.talker:Talker",
            frozenset(),
            reads_out=True,
            feeds_itself=True,
            stores_voices=True,
            is_parallel=True,
            makes=payloads(Payload.CODES),
            sets=TALKER,
            needs=("vllm",),
            reference=PublishedReference(f"{HERE}.reference:verify", ("qwen_tts",)),
            exact={"engine.dtype": "float32"},
        ),
        "qwen3_tts.code2wav": vocoder_kind(
            f"{HERE}.code2wav_stage:Code2WavStage", {"engine.dtype": "float32"}
        ),
    },
    vllm_models={"OmnistageQwen3TTSTalker": f"{HERE}.talker_model:Qwen3TTSTalker"},
    pick=pick,
    tiny={
        name: TinyModel(f"{WRITERS}:write_{writer}", f"{WRITERS}:write_real_{writer}")
        for name, writer in TINY.items()
    },
)
