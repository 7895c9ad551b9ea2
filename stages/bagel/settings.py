"""The sizes of a BAGEL checkpoint, from its three configuration files."""

from dataclasses import dataclass
from pathlib import Path

from transformers import Qwen2Config, SiglipVisionConfig

from omnistage.stages.checkpoint.files import read_json

TEXT_CONFIG = "llm_config.json"
MARKS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")


@dataclass(frozen=True, slots=True)
class BagelSettings:
    """Sizes of the model's parts.

    `latent_side`, `vision_side`: parts of the largest image along a side. `latent_scale`: pixels of
    a part of latents along a side, `part_size`: its numbers. `marks`: ids of an image's start and
    end.
    """

    text: Qwen2Config
    vision: SiglipVisionConfig
    rope_theta: float
    latent_channels: int
    latent_patch: int
    vae_scale: int
    latent_side: int
    vision_side: int
    marks: tuple[int, int]

    @classmethod
    def read(cls, folder: Path, marks: tuple[int, int]) -> "BagelSettings":
        """Read a checkpoint's folder; raises ValueError for what no BAGEL has."""
        config = read_json(folder / "config.json")
        text = read_json(folder / TEXT_CONFIG)
        vision = read_json(folder / "vit_config.json")
        if config.get("interpolate_pos"):
            raise ValueError("config.json: interpolate_pos is not served")
        # The published tower has a layer more in its configuration than in its weights.
        vision["num_hidden_layers"] -= 1
        vae = config["vae_config"]
        return cls(
            Qwen2Config(**text),
            SiglipVisionConfig(**vision),
            text.get("rope_theta", 10_000.0),
            vae["z_channels"],
            config.get("latent_patch_size", 2),
            vae["downsample"],
            config["max_latent_size"],
            config["vit_max_num_patch_per_side"],
            marks,
        )

    @property
    def latent_scale(self) -> int:
        """Return the pixels of a part of latents along a side."""
        return self.vae_scale * self.latent_patch

    @property
    def part_size(self) -> int:
        """Return the numbers of a part of latents."""
        return self.latent_channels * self.latent_patch**2
