"""Qwen2.5-Omni as a family: its kinds, and what serves and writes its models."""

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
from omnistage.stage_configs.rules.own_arguments import MODEL_CLASS, TALKER

HERE = "omnistage.stages.qwen2_5_omni"
WRITE_TINY = f"{HERE}.checkpoint.tiny:write_tiny_checkpoint"
MODEL_TYPE = "qwen2_5_omni"
TINY_HIDDEN_SIZE = 256  # below this a checkpoint is one of ours: it runs anywhere


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """By the model's type, its size and the machine."""
    config = checkpoint.config
    if config.get("model_type") != MODEL_TYPE:
        return None
    return Picked(GRAPHS / _graph(config, num_gpus))


def _graph(config: JsonMap, num_gpus: int) -> str:
    text = config.get("thinker_config", {}).get("text_config", {})
    is_tiny = text.get("hidden_size", TINY_HIDDEN_SIZE) < TINY_HIDDEN_SIZE
    if is_tiny or not num_gpus:
        return "qwen2_5_omni_tiny.yaml"
    return "qwen2_5_omni.yaml" if num_gpus > 1 else "qwen2_5_omni_1gpu.yaml"


FAMILY = Family(
    name="qwen2_5_omni",
    kinds={
        "qwen2_5_omni.thinker": Kind(
            f"{HERE}.thinker:Thinker",
            frozenset({"text"}),
            reads_out=True,
            hears=True,
            hears_videos=True,
            is_parallel=True,
            makes=payloads(Payload.TEXT, Payload.TOKENS, Payload.ROWS),
            sets=MODEL_CLASS,
            needs=("vllm",),
            uses={"soundfile": "vLLM up to 0.32 mishears sounds in questions"},
            reference=PublishedReference(f"{HERE}.reference:verify", ("transformers",)),
        ),
        "qwen2_5_omni.talker": Kind(
            f"{HERE}.talker:Talker",
            frozenset(),
            engine_takes_feed=True,
            is_parallel=True,
            makes=payloads(Payload.CODES),
            takes=(payloads(Payload.TOKENS, Payload.ROWS),),
            is_entry=False,
            sets=TALKER,
            needs=("vllm",),
        ),
        "qwen2_5_omni.token2wav": vocoder_kind(
            f"{HERE}.token2wav.token2wav_stage:Token2WavStage", {"options.chunk": "whole"}
        ),
    },
    vllm_models={
        "OmnistageQwen2_5OmniTalker": f"{HERE}.talker_model:Qwen2_5OmniTalker",
        "OmnistageQwen2_5OmniThinker": f"{HERE}.thinker_model:Qwen2_5OmniThinker",
    },
    pick=pick,
    tiny={
        "qwen2.5-omni": TinyModel(WRITE_TINY, f"{HERE}.checkpoint.real_size:write_7b_folder"),
        "qwen2.5-omni-3b": TinyModel(WRITE_TINY, f"{HERE}.checkpoint.real_size:write_3b_folder"),
    },
    benches={"token2wav": f"{HERE}.token2wav.token2wav_bench:token2wav"},
)
