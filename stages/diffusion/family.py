"""Diffusers' pipelines as a family."""

from omnistage.stage_configs.checkpoint import MODULAR_PIPELINE, PIPELINE, Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import Kind, Payload, PublishedReference, payloads
from omnistage.stages.diffusion.makes import offer

HERE = "omnistage.stages.diffusion"


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Whatever is a pipeline, unless another family knows it."""
    if not (checkpoint.has(PIPELINE) or checkpoint.has(MODULAR_PIPELINE)):
        return None
    return Picked(GRAPHS / "diffusers.yaml", is_last_resort=True)


FAMILY = Family(
    name="diffusers",
    kinds={
        "diffusers": Kind(
            f"{HERE}.stage:DiffusionStage",
            frozenset({"image", "video", "audio"}),
            samples=False,
            takes=(
                payloads(Payload.ARGUMENTS),
                payloads(Payload.ARGUMENTS, Payload.KV),
                payloads(Payload.TEXT),
            ),
            arguments=frozenset(
                {
                    "attention",
                    "call_defaults",
                    "compile",
                    "controlnet",
                    "custom_pipeline_args",
                    "defaults",
                    "device",
                    "dtype",
                    "embedding_cache_mb",
                    "extra",
                    "guidance_ranks",
                    "load_format",
                    "max_batch",
                    "max_loras",
                    "max_megapixel_steps",
                    "max_megapixels",
                    "modules",
                    "offload",
                    "parallel",
                    "pipeline_class",
                    "profile_folder",
                    "quantization",
                    "step_cache",
                    "step_cache_options",
                    "vae_tiling",
                    "warm_up",
                    "worker_extension_cls",
                }
            ),
            offer=offer,
            needs=("diffusers", "accelerate", "greenlet"),
            reference=PublishedReference(f"{HERE}.reference:verify", ("diffusers",)),
            uses={
                "peft": "it takes no LoRA",
                "ftfy": "some pipelines, such as Wan's, do not mend broken characters of a prompt",
            },
        ),
    },
    pick=pick,
    pipelines={"qwen-image": f"{HERE}.profiles.models:QWEN_IMAGE"},
    tiny={
        "flux": TinyModel(f"{HERE}.checkpoint:write_tiny_flux"),
        "qwen-image": TinyModel(
            f"{HERE}.checkpoint:write_tiny_qwen_image",
            f"{HERE}.checkpoint.real_qwen_image:write_real_qwen_image",
        ),
        "sd3": TinyModel(f"{HERE}.checkpoint:write_tiny_sd3"),
        "wan": TinyModel(f"{HERE}.checkpoint:write_tiny_wan"),
    },
)
