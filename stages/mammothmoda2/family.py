"""MammothModa2 as a family: its stages of words and of image ids; its denoiser is a pipeline."""

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import GivenArguments, Kind, Payload, payloads
from omnistage.stage_configs.rules.own_arguments import LATE_INPUTS, TEXT_ENCODER, Owned

HERE = "omnistage.stages.mammothmoda2"
TINY_HIDDEN_SIZE = 1024  # below this a checkpoint is one of ours: it runs anywhere

IMAGE_IDS: Owned = {**TEXT_ENCODER, **LATE_INPUTS}


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Choose a graph by the model's type and size."""
    config = checkpoint.config
    if config.get("model_type") != "mammothmoda2":
        return None
    text = config.get("llm_config", {}).get("text_config", {})
    is_small = text.get("hidden_size", 0) < TINY_HIDDEN_SIZE or not num_gpus
    return Picked(GRAPHS / ("mammothmoda2_tiny.yaml" if is_small else "mammothmoda2.yaml"))


FAMILY = Family(
    name="mammothmoda2",
    kinds={
        "mammothmoda2.image_ids": Kind(
            f"{HERE}.image_ids:ImageIds",
            frozenset(),
            samples=False,
            is_parallel=True,
            makes=payloads(Payload.ARGUMENTS),
            gives=GivenArguments((), f"{HERE}.blank:blank_states"),
            sets=IMAGE_IDS,
            needs=("vllm", "diffusers"),
            exact={"engine.dtype": "float32"},
        ),
        "mammothmoda2.words": Kind(
            f"{HERE}.words:WordsStage",
            frozenset({"text"}),
            is_parallel=True,
            needs=("vllm",),
            exact={"engine.dtype": "float32"},
        ),
    },
    vllm_models={
        "OmnistageMammothModa2ImageIds": f"{HERE}.image_ids_model:MammothModa2ImageIds",
        "OmnistageMammothModa2Words": f"{HERE}.words_model:MammothModa2Words",
    },
    pick=pick,
    tiny={"mammothmoda2": TinyModel(f"{HERE}.checkpoint.tiny:write_tiny_mammothmoda2")},
)
