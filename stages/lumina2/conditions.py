"""Conditions of a denoiser: texts, and images to refer to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from omnistage.stages.lumina2.positions import Size


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """A text of each row: hidden states [rows, length, size] and their mask [rows, length]."""

    states: torch.Tensor
    mask: torch.Tensor

    def repeated(self, number: int) -> "EncodedTexts":
        """Return each row so many times."""
        both = (one.repeat_interleave(number, dim=0) for one in (self.states, self.mask))
        return EncodedTexts(*both)

    def above(self, other: "EncodedTexts") -> "EncodedTexts":
        """Return the rows of both, padded to the longer one's length."""
        length = max(self.mask.shape[1], other.mask.shape[1])
        both = [one._padded(length) for one in (self, other)]
        states, masks = ([one.states for one in both], [one.mask for one in both])
        return EncodedTexts(torch.cat(states), torch.cat(masks))

    def _padded(self, length: int) -> "EncodedTexts":
        extra = length - self.mask.shape[1]
        return EncodedTexts(pad(self.states, (0, 0, 0, extra)), pad(self.mask, (0, extra)))


@dataclass(frozen=True, slots=True)
class References:
    """Images to refer to: patches of their latents [n, patch], and the size of each in patches."""

    patches: torch.Tensor
    sizes: Sequence[Size] = ()

    @property
    def none(self) -> "References":
        """Returns no images, of the same kind."""
        return References(self.patches[:0])

    def of_rows(self, number: int) -> dict[str, Any]:
        """Return the denoiser's arguments for so many rows."""
        return {
            "references": self.patches.expand(number, -1, -1),
            "reference_sizes": [list(self.sizes) for _ in range(number)],
        }
