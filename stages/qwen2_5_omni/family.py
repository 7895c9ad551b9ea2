"""Qwen2.5-Omni as a family: its kinds, and what serves and writes its models."""

from omnistage.stage_configs.family import Family, TinyModel

HERE = "omnistage.stages.qwen2_5_omni"
WRITERS = f"{HERE}.checkpoint"
WRITE_TINY = f"{WRITERS}.tiny:write_tiny_checkpoint"


FAMILY = Family(
    name="qwen2_5_omni",
    kinds={},
    tiny={
        "qwen2.5-omni": TinyModel(WRITE_TINY, f"{WRITERS}.real_size:write_7b_folder"),
        "qwen2.5-omni-3b": TinyModel(WRITE_TINY, f"{WRITERS}.real_size:write_3b_folder"),
    },
    benches={"token2wav": f"{HERE}.token2wav_bench:token2wav"},
)
