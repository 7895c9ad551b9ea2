"""Qwen-Image's text encoder as a family; its denoiser is a pipeline of Diffusers."""

from omnistage.stage_configs.family import Family
from omnistage.stage_configs.kinds import GivenArguments, Kind, Payload, payloads
from omnistage.stage_configs.rules.own_arguments import TEXT_ENCODER

HERE = "omnistage.stages.qwen_image"

FAMILY = Family(
    name="qwen_image",
    kinds={
        "qwen_image.text_encoder": Kind(
            f"{HERE}.text_encoder:TextEncoder",
            frozenset(),
            samples=False,
            is_parallel=True,
            makes=payloads(Payload.ARGUMENTS),
            gives=GivenArguments(("text_encoder", "tokenizer"), f"{HERE}.blank:blank_embeds"),
            sets=TEXT_ENCODER,
            needs=("vllm", "diffusers"),
        ),
    },
    vllm_models={"OmnistageQwenTextEncoder": f"{HERE}.text_encoder_model:QwenTextEncoder"},
)
