"""Reads the denoiser's parts of a MammothModa2 checkpoint, which has all weights in one list."""

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKL
from safetensors import safe_open

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.files import read_json
from omnistage.stages.lumina2.transformer import OmniGen2Transformer2DModel
from omnistage.stages.mammothmoda2.image_states import ImageStates

EMBEDDER = "gen_transformer.time_caption_embed.image_embedder."
# Beginnings of the weights' names, by components of the pipeline: the longest that fits counts.
PREFIXES = {"image_states": EMBEDDER, "transformer": "gen_transformer.", "vae": "gen_vae."}
SET_APART = ("text_feat_dim", "is_image_embedder")  # what the language model's size decides


def empty_parts(config: Json) -> dict[str, Callable[[], Any]]:
    """Return the makers of components of a checkpoint's configuration."""
    size: int = config["llm_config"]["text_config"]["hidden_size"]
    dit: Mapping[str, Any] = {
        name: value
        for name, value in config["gen_dit_config"].items()
        if name not in SET_APART and not name.startswith("_")
    }
    embedder = config.get("gen_image_condition_refiner_config") or {}
    return {
        "transformer": lambda: OmniGen2Transformer2DModel(**dit, text_feat_dim=size),
        "image_states": lambda: ImageStates(
            size, dit["hidden_size"], **{k: v for k, v in embedder.items() if k != "dropout"}
        ),
        "vae": lambda: AutoencoderKL.from_config(config["gen_vae_config"]),
    }


def read_parts(folder: Path, dtype: torch.dtype, given: Container[str]) -> dict[str, Any]:
    """Return the components that are not `given`.

    Raises ValueError for weights that are missing, too many or of another shape.
    """
    makers = empty_parts(read_json(folder / "config.json"))
    wanted = [name for name in makers if name not in given]
    weights: dict[str, dict[str, torch.Tensor]] = {name: {} for name in makers}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - a file of safetensors is no mapping
                name = next((one for one, start in PREFIXES.items() if key.startswith(start)), None)
                if name in wanted:
                    own = key.removeprefix(PREFIXES[name])
                    weights[name][own] = file.get_tensor(key).to(dtype)
    parts = {}
    for name in wanted:
        with init_empty_weights(include_buffers=False):
            made = makers[name]()
        try:
            made.load_state_dict(weights[name], assign=True)
        except RuntimeError as error:
            raise ValueError(f"{folder}: {PREFIXES[name]}: {error}") from error
        parts[name] = made.requires_grad_(False).eval()
    return parts
