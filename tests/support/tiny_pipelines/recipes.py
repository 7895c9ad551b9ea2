"""Settings that the pipelines of a class need beside the rules of `build` and `calls`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import (
    AutoencoderKLAllegro,
    AutoencoderKLWan,
    ClassifierFreeGuidance,
    CogVideoXDDIMScheduler,
    DDPMScheduler,
    EDMDPMSolverMultistepScheduler,
    LCMScheduler,
    SCMScheduler,
)
from support.models.tiny_if import make_tiny_if
from support.tiny_pipelines.films import GUIDED
from support.tiny_pipelines.media import (
    any_conditions,
    any_image,
    any_mask,
    any_sound,
    five_frames,
    nine_frames,
)
from support.tiny_pipelines.sizes import GLM_IDS, LATENT, PACKED
from support.tiny_pipelines.texts import config_of, make_processor, t5_gemma
from support.tiny_pipelines.unet_sizes import SDXL
from support.tiny_pipelines.video_sizes import VIDEO_SIZES
from transformers import (
    ByT5Tokenizer,
    MistralForCausalLM,
    SiglipImageProcessor,
    SiglipVisionConfig,
    SiglipVisionModel,
    T5Config,
    T5EncoderModel,
)

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE, make_t5, make_vae, t5_sizes


@dataclass(frozen=True)
class Recipe:
    """Components of a class of pipelines with other sizes, and arguments of its calls.

    `parts`: sizes that differ, by component, or a function that makes it. `call`: arguments beside
    those of every class; a function gets the request's seed. `without`: arguments that the class
    must not get.
    """

    parts: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def then(self, other: "Recipe") -> "Recipe":
        """Return a recipe with what the other one changes."""
        merged = {
            name: {**mine, **value}
            if isinstance(mine := self.parts.get(name), dict) and isinstance(value, dict)
            else value
            for name, value in other.parts.items()
        }
        parts = {**self.parts, **merged}
        return Recipe(parts, {**self.call, **other.call}, (*self.without, *other.without))


class HarmlessText(torch.nn.Module):
    """A safety checker that finds nothing."""

    device = torch.device("cpu")
    dtype = torch.float32

    def check_text_safety(self, prompt: str) -> bool:
        """Return that a prompt may be used."""
        return True

    def check_video_safety(self, frames: Any) -> Any:
        return frames


def wan_vae() -> Any:
    """Return Wan's VAE."""
    return AutoencoderKLWan(**VIDEO_SIZES["AutoencoderKLWan"]).eval()


def siglip() -> Any:
    """Return a vision encoder with the size of images that HunyuanVideo 1.5's denoiser takes."""
    size = VIDEO_SIZES["HunyuanVideo15Transformer3DModel"]["image_embed_dim"]
    heads = {"num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    pixels = {"image_size": 32, "patch_size": 8}
    return SiglipVisionModel(SiglipVisionConfig(hidden_size=size, **heads, **pixels)).eval()


def t5_gemma_encoder() -> Any:
    """Return T5Gemma's encoder."""
    return t5_gemma().encoder


def mistral() -> Any:
    """Return a text model with a head, in place of Mistral 3."""
    return MistralForCausalLM(config_of(MistralForCausalLM)).eval()


def glm_text() -> Any:
    """Return a T5 of bytes."""
    return T5EncoderModel(T5Config(**{**t5_sizes(TEXT_SIZE), "vocab_size": 384})).eval()


def glm_ids(seed: int) -> torch.Tensor:
    """Return the ids of an image of 64 x 64, four for each 32 x 32 pixels."""
    return torch.randint(0, GLM_IDS, (1, 16), generator=torch.Generator().manual_seed(seed))


def tiled_allegro() -> Any:
    """Return Allegro's VAE, which decodes in tiles alone."""
    vae = AutoencoderKLAllegro(**VIDEO_SIZES["AutoencoderKLAllegro"]).eval()
    vae.enable_tiling()
    return vae


def if_unet(**more: Any) -> Any:
    """Return the U-Net of DeepFloyd IF with some other settings."""
    unet = make_tiny_if().unet
    return type(unet)(**{**unet.config, **more}).eval() if more else unet


def if_scheduler() -> DDPMScheduler:
    """Return IF's scheduler, of few steps."""
    return DDPMScheduler(num_train_timesteps=100, variance_type="learned_range")


BARE = {
    "watermarker": lambda: None,
    "safety_checker": lambda: None,
    "feature_extractor": lambda: None,
}
# Classes whose calls make a megapixel or more, whatever size is wanted.
LARGE = frozenset(
    {
        "HiDreamImagePipeline",
        "QwenImageEditInpaintPipeline",
        "QwenImageEditPipeline",
        "QwenImageLayeredPipeline",
    }
)
# Without the part that draws ids, which come as an argument.
GLM = {
    "vision_language_encoder": lambda: None,
    "processor": lambda: None,
    "tokenizer": ByT5Tokenizer,
    "text_encoder": glm_text,
    "vae": {
        "block_out_channels": (4, 8, 8, 8),
        "latent_channels": LATENT,
        "norm_num_groups": 1,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "latents_mean": [0.0] * LATENT,
        "latents_std": [1.0] * LATENT,
    },
}
PLAIN = {"use_resolution_binning": False}
IF_PARTS = {"unet": if_unet, "scheduler": if_scheduler, "requires_safety_checker": lambda: False}
UPSCALER = {
    "unet": lambda: if_unet(in_channels=6, class_embed_type="timestep"),
    "image_noising_scheduler": if_scheduler,
}
SIGLIP = {
    "image_encoder": siglip,
    "feature_extractor": lambda: SiglipImageProcessor(size={"height": 32, "width": 32}),
    "transformer": {"task_type": "i2v", "target_size": 32},
}
COSMOS = {"safety_checker": HarmlessText}
TEMPLATE = {"template": "{}", "crop_start": 0}
WIDE = {"vae": lambda: make_vae(16), "transformer": {"in_channels": 16, "out_channels": 16}}
I2V = {"in_channels": 3 * LATENT}

# By the beginning of a class's name; a later one changes what an earlier one says.
FAMILIES: tuple[tuple[str, Recipe], ...] = (
    ("StableDiffusionXL", Recipe({"unet": SDXL, "controlnet": SDXL})),
    ("StableDiffusionXLControlNetUnion", Recipe(call={"control_mode": 0})),
    ("StableDiffusionXLControlNetUnionP", Recipe(call={"control_mode": [0]})),
    ("StableDiffusionXLAdapter", Recipe({"adapter": {"adapter_type": "full_adapter_xl"}})),
    ("StableDiffusionInstructPix2Pix", Recipe({"unet": {"in_channels": 2 * LATENT}})),
    ("StableDiffusionXLInstructPix2Pix", Recipe({"unet": {"in_channels": 2 * LATENT}})),
    ("StableDiffusionUpscale", Recipe({"unet": {"in_channels": 7, "num_class_embeds": 1000}})),
    ("StableDiffusion3", Recipe({"text_encoder_3": lambda: make_t5(2 * TEXT_SIZE)})),
    ("StableDiffusion3Inpaint", Recipe(WIDE)),
    ("StableDiffusionXLImg2Img", Recipe(call={"strength": 0.8})),
    ("StableDiffusionXLPAGImg2Img", Recipe(call={"strength": 0.8})),
    (
        "LatentConsistencyModel",
        Recipe({"unet": {"time_cond_proj_dim": 32}, "scheduler": LCMScheduler}),
    ),
    ("AnimateDiffSDXL", Recipe({"unet": SDXL})),
    ("AnimateDiffVideoToVideo", Recipe(without=("height", "width"))),
    ("FluxFill", Recipe({"transformer": {"in_channels": 3 * PACKED, "out_channels": PACKED}})),
    ("FluxControlP", Recipe({"transformer": {"in_channels": 2 * PACKED, "out_channels": PACKED}})),
    ("FluxControlI", Recipe({"transformer": {"in_channels": 2 * PACKED, "out_channels": PACKED}})),
    ("FluxKontext", Recipe(call={"max_area": 32 * 32, "_auto_resize": False})),
    ("Flux2", Recipe(call={"text_encoder_out_layers": (1,)})),
    (
        "Flux2P",
        Recipe(
            {"text_encoder": mistral, "transformer": {"guidance_embeds": True}}, without=("image",)
        ),
    ),
    ("Flux2KleinP", Recipe(without=("image",))),
    ("Flux2KleinKV", Recipe(without=("image",))),
    ("PixArt", Recipe(call={**PLAIN, "clean_caption": False})),
    ("Sana", Recipe(call={**PLAIN, "complex_human_instruction": None, "clean_caption": False})),
    (
        "SanaSprint",
        Recipe(
            {
                "transformer": {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"},
                "scheduler": SCMScheduler,
            },
            {"num_inference_steps": 2},
        ),
    ),
    ("Lumina", Recipe(call={"clean_caption": False})),
    ("IF", Recipe(IF_PARTS, {"height": 16, "width": 16, "clean_caption": False})),
    ("IFImg2Img", Recipe(without=("height", "width"))),
    ("IFInpainting", Recipe(without=("height", "width"))),
    ("IFSuperResolution", Recipe(UPSCALER)),
    ("IFImg2ImgSuper", Recipe(UPSCALER)),
    ("IFInpaintingSuper", Recipe(UPSCALER)),
    ("PRX", Recipe({"text_encoder": t5_gemma_encoder, "vae": make_vae}, PLAIN)),
    ("HunyuanDiT", Recipe(call=PLAIN)),
    ("CogView3", Recipe({"scheduler": CogVideoXDDIMScheduler}, {"max_sequence_length": 224})),
    ("CogVideoX", Recipe({"scheduler": CogVideoXDDIMScheduler}, {"num_frames": 9})),
    ("CogVideoXImageToVideo", Recipe({"transformer": {"in_channels": 2 * LATENT}})),
    ("CogVideoXFunControl", Recipe({"transformer": {"in_channels": 2 * LATENT}})),
    ("Cosmos", Recipe(COSMOS, {"num_frames": 9})),
    ("Cosmos2", Recipe({"transformer": {"in_channels": LATENT + 1}})),
    ("HunyuanVideo", Recipe(call={"prompt_template": TEMPLATE, "num_frames": 5})),
    ("HunyuanVideo15", Recipe({"guider": ClassifierFreeGuidance}, without=("prompt_template",))),
    ("HunyuanVideo15ImageToVideo", Recipe(SIGLIP)),
    ("Kandinsky5", Recipe({"tokenizer": make_processor}, {"num_frames": 5})),
    ("Allegro", Recipe({"vae": tiled_allegro})),
    ("HiDream", Recipe(call={"max_sequence_length": 16})),
    ("StableAudio", Recipe({"scheduler": EDMDPMSolverMultistepScheduler}, {"audio_end_in_s": 1.0})),
    ("StableDiffusionUpscale", Recipe({"safety_checker": lambda: None})),
    ("EasyAnimate", Recipe()),
    (
        "StableDiffusion3ControlNetInpainting",
        Recipe({"controlnet": {"extra_conditioning_channels": 1}}, {"control_mask": any_mask}),
    ),
    (
        "QwenImageControlNetInpaint",
        Recipe({"controlnet": {"extra_condition_channels": 4}}, {"control_mask": any_mask}),
    ),
    ("LucyEdit", Recipe({"transformer": {"in_channels": 2 * LATENT}}, {"video": five_frames})),
    ("AnimateDiffControlNet", Recipe(call={"conditioning_frames": five_frames})),
    ("AnimateDiffVideoToVideoControlNet", Recipe(call={"conditioning_frames": nine_frames})),
    ("CogView4Control", Recipe({"transformer": {"in_channels": 2 * LATENT}})),
    ("CogVideoXFunControl", Recipe(call={"control_video": nine_frames})),
    ("CosmosVideoToWorld", Recipe(without=("image",))),
    ("Cosmos2VideoToWorld", Recipe(without=("video",))),
    ("Cosmos2_5_Predict", Recipe(without=("video",))),
    ("Kandinsky3Img2Img", Recipe(call={"strength": 0.8})),
    ("WanVACE", Recipe(call={"video": five_frames})),
    ("SanaVideo", Recipe({"vae": wan_vae}, {"frames": 5})),
    ("SanaImageToVideo", Recipe({"vae": wan_vae}, {"frames": 5})),
    ("IFSuperResolution", Recipe(call={"noise_level": 50})),
    ("IFImg2ImgSuper", Recipe(BARE, {"noise_level": 50, "original_image": any_image})),
    ("IFInpaintingSuper", Recipe(BARE, {"noise_level": 50, "original_image": any_image})),
    ("GlmImage", Recipe(GLM, {"height": 64, "width": 64, "prior_token_ids": glm_ids}, ("image",))),
    ("Latte", Recipe(call={"video_length": 2, "clean_caption": False})),
    ("LTX", Recipe(call={"num_frames": 9})),
    ("LTX2", Recipe(call=GUIDED)),
    ("LTX2Condition", Recipe(call={"conditions": any_conditions})),
    ("AceStep", Recipe(call={"audio_duration": 1.0, "guidance_scale": 3.0})),
    ("LongCatAudio", Recipe(call={"audio_duration_s": 0.5})),
    ("StableAudio3", Recipe(call={"duration": 0.5})),
    ("StableAudio3AudioToAudio", Recipe(call={"audio": any_sound})),
    (
        "StableAudio3Inpaint",
        Recipe(call={"audio": any_sound, "mask_start_seconds": 0.1, "mask_end_seconds": 0.3}),
    ),
    ("Kandinsky6", Recipe(call={"num_frames": 5, "max_sequence_length": 1024})),
    ("Mochi", Recipe(call={"num_frames": 7})),
    ("WanImageToVideo", Recipe({"transformer": I2V})),
    ("SkyReelsV2ImageToVideo", Recipe({"transformer": I2V})),
)


def recipe_of(made: type) -> Recipe:
    """Return what the pipelines of a class need beside the rules."""
    found = Recipe()
    for beginning, recipe in FAMILIES:
        if made.__name__.startswith(beginning):
            found = found.then(recipe)
    return found
