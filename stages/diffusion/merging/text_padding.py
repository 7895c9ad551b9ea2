"""Texts of different lengths in one forward, where the denoiser takes a mask for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from omnistage.stages.diffusion.pipeline import Arguments


@dataclass(frozen=True, slots=True)
class TextPadding:
    """A mask [batch, length] and the texts [batch, length, size] that it is for.

    A call without the mask has tokens only.
    """

    mask: str
    texts: tuple[str, ...]
    dtype: torch.dtype

    def fits(self, call: Arguments) -> bool:
        """Returns whether the texts and the mask of a call have one shape."""
        if not all(isinstance(call.get(name), torch.Tensor) for name in self.texts):
            return False
        shapes = {call[name].shape[:2] for name in self.texts}
        if call.get(self.mask) is not None:
            shapes.add(call[self.mask].shape)
        return len(shapes) == 1

    def level(self, calls: Sequence[Arguments]) -> Sequence[Arguments]:
        """The same calls with all texts as long as the longest, if they are not already."""
        lengths = {self.length(call) for call in calls}
        has_mask = [call.get(self.mask) is not None for call in calls]
        if len(lengths) == 1 and (all(has_mask) or not any(has_mask)):
            return calls
        return [self.padded(call, max(lengths)) for call in calls]

    def length(self, call: Arguments) -> int:
        """How many tokens the texts of a call have."""
        return int(call[self.texts[0]].shape[1])

    def padded(self, call: Arguments, length: int) -> dict[str, object]:
        """One call with texts of this length and a mask."""
        text = call[self.texts[0]]
        mask = call.get(self.mask)
        if mask is None:
            mask = torch.ones(text.shape[:2], dtype=self.dtype, device=text.device)
        extra = length - self.length(call)
        texts = {name: pad(call[name], (0, 0, 0, extra)) for name in self.texts}
        return {**call, **texts, self.mask: pad(mask.to(self.dtype), (0, extra))}


def candidates(
    parameters: Sequence[str], call: Arguments, endings: Sequence[str]
) -> Iterator[TextPadding]:
    """Yields what a denoiser's masks could be for, by how they end; each must be tried."""
    for mask in parameters:
        ending = next((ending for ending in endings if mask.endswith(ending)), None)
        if ending is None:
            continue
        value = call.get(mask)
        texts = _texts(mask.removesuffix(ending), value, call)
        if texts:
            yield TextPadding(mask, texts, torch.bool if value is None else value.dtype)


def _texts(stem: str, mask: object, call: Arguments) -> tuple[str, ...]:
    """The tensors [batch, length, size] of the mask's shape or, without a mask, of its name."""
    tensors = {
        name: value
        for name, value in call.items()
        if isinstance(value, torch.Tensor) and value.dim() == 3
    }
    if mask is None:
        return tuple(name for name in tensors if name == stem)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return ()
    return tuple(name for name, value in tensors.items() if value.shape[:2] == mask.shape)
