"""Qwen3-Omni as a family: its kinds, and what serves, writes and measures its models."""

from pathlib import Path

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.gpus import memory_bytes
from omnistage.stage_configs.kinds import (
    Kind,
    Payload,
    PublishedReference,
    payloads,
    vocoder_kind,
)
from omnistage.stage_configs.rules.own_arguments import MODEL_CLASS, TALKER

HERE = "omnistage.stages.qwen3_omni"
MODEL_TYPE = "qwen3_omni_moe"
OPENED_THOUGHTS = ("<|im_start|>assistant\n<think>", r"<|im_start|>assistant\n<think>")
WHOLE_BYTES = (
    120 * 10**9
)  # a GPU with less holds the model with its thinker in FP8 (docs/memory.md)
TINY_HIDDEN_SIZE = 512  # below this a checkpoint is one of ours: it runs anywhere


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """By the model's type, its size and the machine."""
    config = checkpoint.config
    if config.get("model_type") != MODEL_TYPE:
        return None
    return Picked(GRAPHS / _graph(checkpoint, num_gpus))


def _graph(checkpoint: Checkpoint, num_gpus: int) -> str:
    config = checkpoint.config
    text = config.get("thinker_config", {}).get("text_config", {})
    is_tiny = text.get("hidden_size", TINY_HIDDEN_SIZE) < TINY_HIDDEN_SIZE or not num_gpus
    if not config.get("enable_audio_output", True):
        name = "qwen3_omni_thinking" if _thinks_first(checkpoint) else "qwen3_omni_text"
        return f"{name}_tiny.yaml" if is_tiny else f"{name}.yaml"
    if is_tiny:
        return "qwen3_omni_tiny.yaml"
    if num_gpus > 1:
        return "qwen3_omni.yaml"
    memory = memory_bytes()
    is_small = memory is not None and memory < WHOLE_BYTES
    return "qwen3_omni_1gpu_80gb.yaml" if is_small else "qwen3_omni_1gpu.yaml"


def _thinks_first(checkpoint: Checkpoint) -> bool:
    """Returns whether its chat template opens answers with a thought, or its name says that it
    thinks.
    """
    if "thinking" in checkpoint.model.lower():
        return True
    files = (checkpoint.json(name) for name in ("chat_template.json", "tokenizer_config.json"))
    templates = (str(file.get("chat_template", "")) for file in files)
    # Jinja has the line break as it is, or as it is written in a string.
    return any(opening in one for one in templates for opening in OPENED_THOUGHTS)


FAMILY = Family(
    name="qwen3_omni",
    kinds={
        "qwen3_omni.thinker": Kind(
            f"{HERE}.thinker:Thinker",
            frozenset({"text"}),
            reads_out=True,
            hears=True,
            hears_videos=True,
            is_parallel=True,
            is_pipeline=True,
            makes=payloads(Payload.TEXT, Payload.TOKENS, Payload.ROWS),
            sets=MODEL_CLASS,
            needs=("vllm",),
            uses={"soundfile": "vLLM up to 0.32 mishears sounds in questions"},
            reference=PublishedReference(f"{HERE}.reference:verify", ("transformers",)),
        ),
        "qwen3_omni.talker": Kind(
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
        "qwen3_omni.code2wav": vocoder_kind(f"{HERE}.code2wav_stage:Code2WavStage"),
    },
    vllm_models={
        "OmnistageQwen3OmniTalker": f"{HERE}.talker_model:Qwen3OmniTalker",
        "OmnistageQwen3OmniThinker": f"{HERE}.thinker_model:Qwen3OmniThinker",
    },
    pick=pick,
    tiny={
        "qwen3-omni": TinyModel(
            f"{HERE}.checkpoint.tiny:write_tiny_checkpoint",
            f"{HERE}.checkpoint.real_size:write_real_size_folder",
        ),
        "qwen3-omni-thinking": TinyModel(f"{HERE}.checkpoint.tiny:write_tiny_thinking"),
        "qwen3-omni-captioner": TinyModel(f"{HERE}.checkpoint.tiny:write_tiny_captioner"),
    },
    benches={
        "bridge": f"{HERE}.bench_commands:bridge",
        "stages": f"{HERE}.bench_commands:stages",
    },
    memory=(Path(__file__).with_name("memory.yaml"),),
)
