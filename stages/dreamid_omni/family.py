"""DreamID-Omni as a family: a pipeline of our own math in the stage of pipelines."""

from pathlib import Path

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stages.dreamid_omni.checkpoint.layout import fusion_of

TINY_BYTES = 2**30  # a denoiser of fewer is one of ours: it runs anywhere


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Choose a graph for a folder by its denoiser's file; the hub has no such folder."""
    path = fusion_of(Path(checkpoint.model))
    if not path.is_file():
        return None
    is_small = path.stat().st_size < TINY_BYTES or not num_gpus
    return Picked(GRAPHS / ("dreamid_omni_tiny.yaml" if is_small else "dreamid_omni.yaml"))


FAMILY = Family(
    name="dreamid_omni",
    kinds={},
    pick=pick,
    tiny={
        "dreamid-omni": TinyModel(
            "omnistage.stages.dreamid_omni.checkpoint.tiny:write_tiny_dreamid_omni"
        )
    },
)
