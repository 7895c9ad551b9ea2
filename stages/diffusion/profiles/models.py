"""The profiles of models that Diffusers brings."""

from omnistage.stages.diffusion.profiles.profile import PipelineProfile

BLOCKS = "omnistage.stages.diffusion.blocks"

QWEN_IMAGE = PipelineProfile(
    name="qwen-image",
    denoisers=frozenset({"QwenImageTransformer2DModel"}),
    vaes=frozenset({"AutoencoderKLQwenImage"}),
    fuse=f"{BLOCKS}.qwen_image:fuse",
    attend_by_flash_3=f"{BLOCKS}.qwen_image:attend_by_flash_3",
    flatten=f"{BLOCKS}.single_frames:flatten_single_frames",
)
