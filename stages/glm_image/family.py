"""GLM-Image as a family: its stage of image ids; its denoiser is a pipeline of Diffusers."""

from omnistage.stage_configs.checkpoint import PIPELINE, Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import GivenArguments, Kind, Payload, payloads
from omnistage.stage_configs.rules.own_arguments import LATE_INPUTS, MODEL_CLASS, Own, Owned

HERE = "omnistage.stages.glm_image"
CLASS = "GlmImagePipeline"
CONFIG = "vision_language_encoder/config.json"
REPLACED = ("vision_language_encoder", "processor")  # components of the pipeline
TINY_HIDDEN_SIZE = 1024  # below this a checkpoint is one of ours: it runs anywhere

PRIOR: Owned = {
    **MODEL_CLASS,
    **LATE_INPUTS,
    "enable_prefix_caching": Own("its prompts are short, and no two images share ids", False),
}


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """By the pipeline's class and the model's size."""
    if checkpoint.json(PIPELINE).get("_class_name") != CLASS:
        return None
    text = checkpoint.json(CONFIG).get("text_config", {})
    is_tiny = text.get("hidden_size", TINY_HIDDEN_SIZE) < TINY_HIDDEN_SIZE
    is_small = is_tiny or not num_gpus
    return Picked(GRAPHS / ("glm_image_tiny.yaml" if is_small else "glm_image.yaml"))


FAMILY = Family(
    name="glm_image",
    kinds={
        "glm_image.prior": Kind(
            f"{HERE}.prior:Prior",
            frozenset(),
            samples=False,
            is_parallel=True,
            makes=payloads(Payload.ARGUMENTS),
            gives=GivenArguments(REPLACED, f"{HERE}.blank:blank_ids"),
            sets=PRIOR,
            needs=("vllm", "diffusers"),
            exact={"engine.dtype": "float32"},
        ),
    },
    vllm_models={"OmnistageGlmImagePrior": f"{HERE}.prior_model:GlmImagePrior"},
    pick=pick,
    tiny={
        "glm-image": TinyModel(
            f"{HERE}.checkpoint.tiny:write_tiny_glm_image",
            f"{HERE}.checkpoint.real_size:write_real_glm_image",
        )
    },
)
