"""OmniGen2 as a family: its language model's stage; its pipeline runs in Diffusers' stage."""

from omnistage.stage_configs.checkpoint import PIPELINE, Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import GivenArguments, Kind, Payload, payloads

HERE = "omnistage.stages.omnigen2"
CLASS = "OmniGen2Pipeline"
CONFIG = "transformer/config.json"
TINY_HIDDEN_SIZE = 1024  # below this a checkpoint is one of ours: it runs anywhere


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """By the pipeline's class and the model's size."""
    if checkpoint.json(PIPELINE).get("_class_name") != CLASS:
        return None
    is_tiny = checkpoint.json(CONFIG).get("hidden_size", TINY_HIDDEN_SIZE) < TINY_HIDDEN_SIZE
    is_small = is_tiny or not num_gpus
    return Picked(GRAPHS / ("omnigen2_tiny.yaml" if is_small else "omnigen2.yaml"))


FAMILY = Family(
    name="omnigen2",
    kinds={
        "omnigen2.mllm": Kind(
            f"{HERE}.mllm:Mllm",
            frozenset({"text"}),
            is_parallel=True,
            makes=payloads(Payload.ARGUMENTS),
            gives=GivenArguments(("mllm", "processor"), f"{HERE}.blank:blank_texts"),
            needs=("vllm", "diffusers"),
            exact={"engine.dtype": "float32"},
            chooses=True,
        ),
    },
    pick=pick,
    tiny={"omnigen2": TinyModel(f"{HERE}.checkpoint.tiny:write_tiny_omnigen2")},
)
