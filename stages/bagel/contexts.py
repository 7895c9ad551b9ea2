"""Contexts of one request, built text by text and image by image."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from omnistage.stages.bagel.cells import cells_of, parted
from omnistage.stages.bagel.resizing import resized
from omnistage.stages.bagel.settings import BagelSettings
from omnistage.stages.bagel.texts import END, START, said_text, text_ids

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

    def prefix(self, num_tokens: int) -> "ReadContext":
        """Return the first tokens of texts alone; raises ValueError for more than there are."""
        if not 0 <= num_tokens <= self.keys_and_values.shape[3]:
            most = self.keys_and_values.shape[3]
            raise ValueError(f"prefix_tokens must be 0 to {most}, not {num_tokens}")
        position = torch.full_like(self.position, num_tokens)
        return ReadContext(self.keys_and_values[:, :, :, :num_tokens], position)


class ContextBuilder:
    """Reads texts and images with a pipeline's modules; contexts are never changed."""

    def __init__(self, pipeline: Any, settings: BagelSettings, device: torch.device) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._device = device
        self._start, self._end = pipeline.tokenizer.convert_tokens_to_ids([START, END])

    def empty(self) -> ReadContext:
        """Return the context of nothing."""
        config = self._settings.text
        size = config.hidden_size // config.num_attention_heads
        shape = 1, config.num_hidden_layers, 2, 0, config.num_key_value_heads, size
        dtype = self._pipeline.transformer.llm2vae.weight.dtype
        none = torch.zeros(shape, dtype=dtype, device=self._device)
        return ReadContext(none, torch.zeros(1, dtype=torch.int64, device=self._device))

    def given(self, keys_and_values: Tensor) -> ReadContext:
        """Return a context of texts that was read elsewhere, [layers, 2, tokens, heads, size].

        Raises ValueError for one of another shape than this model's.
        """
        empty = self.empty()
        shape, own = list(keys_and_values.shape), list(empty.keys_and_values.shape[1:])
        if len(shape) != len(own) or shape[:2] + shape[3:] != own[:2] + own[3:]:
            raise ValueError(f"contexts must be of shape {own} but for the tokens, not {shape}")
        return ReadContext(
            keys_and_values[None].to(empty.keys_and_values), empty.position + shape[2]
        )

    def text(self, before: ReadContext, text: str) -> ReadContext:
        """Read a text between its marks."""
        return self._read(before, text_ids(self._pipeline.tokenizer, text))[0]

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
        return said_text(self._pipeline.tokenizer, ids[1:])

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
