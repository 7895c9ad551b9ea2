"""Images to edit: read at a size that both halves take, and made into ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import init_empty_weights
from PIL import Image
from transformers import GlmImageConfig, GlmImageModel
from transformers.models.glm_image.image_processing_glm_image import smart_resize

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.glm_image.grids import DEFAULT_SIDE, ID_SIDE, Grid, Ints, prior_ids
from omnistage.stages.glm_image.prior_prompt import SourcePatches
from omnistage.stages.vocoder.checkpoint import read_part
from omnistage.stages.worker.failure import RequestError

FOLDER = "vision_language_encoder"
PARTS = ("visual.", "vqmodel.")  # of the model, which read images
WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class SourceIds:
    """Ids int64 [n] of images to edit, one image after the other, and the grid of each."""

    ids: Ints
    grids: Sequence[Grid]

    def arguments(self, num_prompts: int) -> dict[str, Ints]:
        """Returns the pipeline's arguments of images: a row for each prompt."""
        ends = np.cumsum([rows * columns for rows, columns in self.grids])[:-1]
        parts = np.split(self.ids, ends)
        ids = [prior_ids(part, grid) for part, grid in zip(parts, self.grids, strict=True)]
        grids = [[1, 2 * rows, 2 * columns] for rows, columns in self.grids]
        made = {
            "prior_token_image_ids": np.concatenate(ids),
            "source_image_grid_thw": np.array(grids),
        }
        return {name: np.stack([one] * num_prompts) for name, one in made.items()}


class SourceEncoder:
    """Makes ids of images by the model's vision tower and its quantizer, which transformers has."""

    def __init__(
        self, model: str, device: torch.device, dtype: torch.dtype, *, has_weights: bool = True
    ) -> None:
        """Load both parts of a pipeline's folder or hub name, without weights dummy ones.

        Raises KeyError for a folder without a weight of them.
        """
        config = GlmImageConfig.from_pretrained(model, subfolder=FOLDER)
        text = config.text_config  # its layers are vLLM's
        text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, 0
        with init_empty_weights(include_buffers=False):
            made = GlmImageModel(config).eval().requires_grad_(False)
        wanted = {k: one for k, one in made.state_dict().items() if k.startswith(PARTS)}
        if has_weights:
            weights = {
                part + name: weight.to(dtype)
                for part in PARTS
                for name, weight in read_part(model, f"model.{part}", device, FOLDER)
            }
        else:
            weights = {k: torch.empty(one.shape, dtype=dtype) for k, one in wanted.items()}
            fill_with_dummy_weights(weights.items())
            weights = {name: one.to(device) for name, one in weights.items()}
        if missing := sorted(wanted.keys() - weights.keys()):
            raise KeyError(f"{model}/{FOLDER} has no weight model.{missing[0]}")
        made.load_state_dict(weights, strict=False, assign=True)
        del made.language_model
        self._model: Any = made.to(device)  # the buffers
        self._device = device

    @torch.inference_mode()
    def ids(self, sources: SourcePatches) -> SourceIds:
        """Return the ids of the images of a prompt."""
        grids = sources.grids.to(self._device)
        seen = self._model.get_image_features(sources.pixels.to(self._device), grids).pooler_output
        ids: torch.Tensor = self._model.get_image_tokens(seen)
        return SourceIds(
            ids.cpu().numpy(), [(rows, columns) for _, rows, columns in grids.tolist()]
        )


def fitting(processor: Any, pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Return an image [height, width, 3 or 4] at the size in which a processor of images reads it.

    The denoiser needs a place in the image for each of its ids. What is transparent is over white.
    Raises RequestError for an image that is too narrow.
    """
    image = Image.fromarray(pixels)
    if image.mode == "RGBA":
        ground = Image.new("RGBA", image.size, WHITE)
        image = Image.alpha_composite(ground, image).convert("RGB")
    factor, bounds = processor.patch_size * processor.merge_size, processor.size
    least, most = bounds["shortest_edge"], bounds["longest_edge"]
    try:
        height, width = smart_resize(image.height, image.width, factor, least, most)
    except ValueError as error:
        message = f"cannot be edited: {error}"
        raise RequestError(400, message, param="image", code="invalid_value") from None
    size = 2 * width, 2 * height  # it is read at half of its size
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def size_after(image: Image.Image) -> Grid:
    """Return height and width of an edit whose size nobody said: the image's, if not too large."""
    scale = min(1.0, DEFAULT_SIDE / (image.width * image.height) ** 0.5)
    height, width = (max(1, int(side * scale) // ID_SIDE) * ID_SIDE for side in image.size[::-1])
    return height, width
