"""BAGEL as a family: its language model's stage; its pipeline runs in Diffusers' stage."""

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import GivenArguments, Kind, Payload, payloads
from omnistage.stage_configs.rules.own_arguments import MODEL_CLASS

HERE = "omnistage.stages.bagel"
TINY_HIDDEN_SIZE = 1024  # below this a checkpoint is one of ours: it runs anywhere


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Choose a graph by the model's type and size."""
    if checkpoint.config.get("model_type") != "bagel":
        return None
    size = checkpoint.json("llm_config.json").get("hidden_size", TINY_HIDDEN_SIZE)
    is_small = size < TINY_HIDDEN_SIZE or not num_gpus
    return Picked(GRAPHS / ("bagel_tiny.yaml" if is_small else "bagel.yaml"))


FAMILY = Family(
    name="bagel",
    kinds={
        "bagel.llm": Kind(
            f"{HERE}.llm:Llm",
            frozenset({"text"}),
            makes=payloads(Payload.ARGUMENTS, Payload.KV),
            gives=GivenArguments((), f"{HERE}.blank:blank_prompt"),
            sets=MODEL_CLASS,
            needs=("vllm", "diffusers"),
            exact={"engine.dtype": "float32"},
            chooses=True,
        ),
    },
    vllm_models={"OmnistageBagelLlm": f"{HERE}.llm_model:BagelLlm"},
    pick=pick,
    tiny={"bagel": TinyModel(f"{HERE}.checkpoint.tiny:write_tiny_bagel")},
)
