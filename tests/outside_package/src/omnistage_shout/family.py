"""What the package says of its family; every process imports this file, so it stays light."""

from pathlib import Path

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import Family, Picked, TinyModel
from omnistage.stage_configs.kinds import Kind, Payload, payloads

GRAPH = Path(__file__).with_name("shout.yaml")


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Its checkpoints are known by the type in their config.json; any machine will do."""
    return Picked(GRAPH) if checkpoint.config.get("model_type") == "shout" else None


FAMILY = Family(
    name="shout",
    kinds={
        "shout.reader": Kind(
            "omnistage_shout.reader:Reader",
            frozenset(),
            samples=False,
            makes=payloads(Payload.TOKENS),
        ),
        "shout.writer": Kind(
            "omnistage_shout.writer:Writer",
            frozenset({"text"}),
            samples=False,
            takes=(payloads(Payload.TOKENS),),
            is_entry=False,
        ),
    },
    pick=pick,
    tiny={"shout": TinyModel("omnistage_shout.tiny:write")},
)
