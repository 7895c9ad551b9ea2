"""Contexts of one request, built text by text and image by image."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from omnistage.stages.bagel.cells import cells_of, parted
from omnistage.stages.bagel.resizing import resized
from omnistage.stages.bagel.settings import MARKS, BagelSettings
from omnistage.stages.worker.failure import RequestError

# The smallest sides in which images are read: as latents, and by the vision tower.
LEAST_LATENT, LEAST_VISION = 512, 224
Generator = torch.Generator | None


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Keys and values [1, layers, 2, tokens, heads, size], and the next position int64 [1]."""

    keys_and_values: Tensor
    position: Tensor

    def followed(self, keys_and_values: Tensor, num_positions: int) -> "ReadContext":
        """Return it with more tokens."""
        return ReadContext(keys_and_values, self.position + num_positions)


class ContextBuilder:
    """Reads texts and images with a pipeline's modules; contexts are never changed."""

    def __init__(self, pipeline: Any, settings: BagelSettings, device: torch.device) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._device = device
        ids = pipeline.tokenizer.convert_tokens_to_ids(list(MARKS[:2]))
        self._start, self._end = ids

    def empty(self) -> ReadContext:
        """Return the context of nothing."""
        config = self._settings.text
        size = config.hidden_size // config.num_attention_heads
        shape = 1, config.num_hidden_layers, 2, 0, config.num_key_value_heads, size
        dtype = self._pipeline.transformer.llm2vae.weight.dtype
        none = torch.zeros(shape, dtype=dtype, device=self._device)
        return ReadContext(none, torch.zeros(1, dtype=torch.int64, device=self._device))

    def text(self, before: ReadContext, text: str) -> ReadContext:
        """Read a text between its marks."""
        ids = [self._start, *self._ids(text), self._end]
        return self._read(before, ids)[0]

    def image(self, before: ReadContext, image: Image.Image, generator: Generator) -> ReadContext:
        """Read an image as latents, then as it is seen; `generator` draws the latents."""
        return self._seen(self._latents(before, image, generator), image)

    def fitted(self, image: Image.Image) -> Image.Image:
        """Return an image in the size of its latents, which is that of the result."""
        scale, side = self._settings.latent_scale, self._settings.latent_side
        return resized(image, min(LEAST_LATENT, scale * side), scale * side, scale)

    def thought(self, before: ReadContext, most: int, temperature: float, draw: Generator) -> str:
        """Write what follows a context, at most so many tokens; greedy at temperature 0."""
        written, latest = before, self._start
        ids: list[int] = []
        while len(ids) < most and (latest != self._end or not ids):
            ids.append(latest)
            written, logits = self._read(written, [latest])
            if temperature:
                odds = (logits / temperature).softmax(dim=-1).cpu()
                latest = int(torch.multinomial(odds, 1, generator=draw))
            else:
                latest = int(logits.argmax())
        text: str = self._pipeline.tokenizer.decode(ids)
        start, end = MARKS[:2]
        return text.split(end)[0].split(start)[1]

    def check(self, text: str) -> None:
        """Raise RequestError for a text that has one of the model's own marks."""
        own = set(self._pipeline.tokenizer.all_special_tokens) | set(MARKS)
        found = next((one for one in sorted(own) if one in text), None)
        if found is not None:
            message = f"prompt: {found} is a token of the model, which no prompt may have"
            raise RequestError(400, message, param="prompt", code="invalid_value")

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._pipeline.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _read(self, before: ReadContext, ids: list[int]) -> tuple[ReadContext, Tensor]:
        given = torch.tensor([ids], device=self._device)
        longer, logits = self._pipeline.text_reader(before.keys_and_values, before.position, given)
        return before.followed(longer, len(ids)), logits

    def _latents(self, before: ReadContext, image: Image.Image, draw: Generator) -> ReadContext:
        vae, settings = self._pipeline.vae, self._settings
        pixels = _normed(self.fitted(image))[None].to(self._device, vae.dtype)
        latents = vae.encode(pixels).latent_dist.sample(draw)[0].float()
        latents = vae.config.scaling_factor * (latents - vae.config.shift_factor)
        patch = settings.latent_patch
        cells = self._cells(latents, patch, settings.latent_side)
        longer = self._pipeline.latent_reader(
            before.keys_and_values, before.position, parted(latents, patch)[None], cells
        )
        return before.followed(longer, 1)

    def _seen(self, before: ReadContext, image: Image.Image) -> ReadContext:
        patch, side = self._settings.vision.patch_size, self._settings.vision_side
        least = min(LEAST_VISION, patch * side)
        pixels = _normed(resized(image, least, patch * side, patch)).to(self._device)
        cells = self._cells(pixels, patch, side)
        longer = self._pipeline.image_reader(
            before.keys_and_values, before.position, parted(pixels, patch)[None], cells
        )
        return before.followed(longer, 1)

    def _cells(self, image: Tensor, patch: int, side: int) -> Tensor:
        height, width = (one // patch for one in image.shape[-2:])
        return cells_of(height, width, side).to(self._device)[None]


def _normed(image: Image.Image) -> Tensor:
    """Return an image as float32 [3, height, width] of -1..1."""
    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    return pixels / 127.5 - 1
