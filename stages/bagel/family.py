"""BAGEL as a family: a pipeline of our own math in the stage of pipelines."""

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel

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
    kinds={},
    pick=pick,
    tiny={"bagel": TinyModel("omnistage.stages.bagel.checkpoint.tiny:write_tiny_bagel")},
)
