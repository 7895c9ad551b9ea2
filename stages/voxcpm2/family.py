"""VoxCPM2 as a family: its kinds, and what serves and writes its models."""

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import Kind, Payload, payloads, vocoder_kind
from omnistage.stage_configs.rules.own_arguments import TALKER, Own

HERE = "omnistage.stages.voxcpm2"
ARCHITECTURE = "voxcpm2"
TINY_HIDDEN_SIZE = 256  # below this a checkpoint is one of ours: it runs anywhere


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """By the architecture, the model's size and the machine; it uses one GPU at most."""
    config = checkpoint.config
    if str(config.get("architecture", "")).lower() != ARCHITECTURE:
        return None
    hidden_size: int = config.get("lm_config", {}).get("hidden_size", TINY_HIDDEN_SIZE)
    is_small = hidden_size < TINY_HIDDEN_SIZE or not num_gpus
    return Picked(GRAPHS / ("voxcpm2_tiny.yaml" if is_small else "voxcpm2.yaml"))


FAMILY = Family(
    name="voxcpm2",
    kinds={
        "voxcpm2.talker": Kind(
            f"{HERE}.talker:Talker",
            frozenset(),
            reads_out=True,
            stores_voices=True,
            makes=payloads(Payload.CODES),
            sets={**TALKER, "config_format": Own("a checkpoint names no type of transformers'")},
            needs=("vllm",),
            exact={"engine.dtype": "float32"},
        ),
        "voxcpm2.vae": vocoder_kind(f"{HERE}.vocoder:VaeStage", {"engine.dtype": "float32"}),
    },
    vllm_models={"OmnistageVoxCPM2Talker": f"{HERE}.talker_model:VoxCPM2Talker"},
    pick=pick,
    tiny={
        "voxcpm2": TinyModel(f"{HERE}.checkpoint.tiny:write", f"{HERE}.checkpoint.real_size:write")
    },
)
