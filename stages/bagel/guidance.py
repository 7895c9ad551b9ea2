"""Guidance of BAGEL's flow: away from what it would draw without the text, without the images."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Renormalisation = Literal["global", "channel", "text_channel"]
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class FlowGuidance:
    """Moves velocities by its scales, at some times (1 is noise, 0 the image).

    A scale of 1 or less moves nothing. `renormalisation`: the norm that a moved velocity keeps at
    most, that of the whole image (`global`) or of each part of it (`channel`); with `text_channel`
    it is applied before the images' guidance. `least`: the smallest factor of it.
    """

    text_scale: float
    image_scale: float
    interval: tuple[float, float]
    renormalisation: Renormalisation
    least: float

    def acts_at(self, time: Tensor) -> bool:
        """Return whether velocities of a time are moved."""
        first, last = self.interval
        return self.text_scale > 1 and bool((time > first) & (time <= last))

    @property
    def has_images(self) -> bool:
        """Return whether velocities without the images are needed."""
        return self.image_scale > 1

    def moved(self, velocity: Tensor, textless: Tensor, imageless: Tensor | None) -> Tensor:
        """Return the velocity of one image [n, size], from its own and those without."""
        moved = torch.lerp(textless, velocity, self.text_scale)
        if self.renormalisation == "text_channel":
            moved = self._renormed(moved, velocity)
        if imageless is not None:
            moved = torch.lerp(imageless, moved, self.image_scale)
        return moved if self.renormalisation == "text_channel" else self._renormed(moved, velocity)

    def _renormed(self, moved: Tensor, velocity: Tensor) -> Tensor:
        dims = (0, 1) if self.renormalisation == "global" else (1,)
        norms = (one.norm(dim=dims, keepdim=True) for one in (velocity, moved))
        before, after = norms
        return moved * (before / (after + EPSILON)).clamp(min=self.least, max=1.0)
