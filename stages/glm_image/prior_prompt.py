"""Makes the ids that the autoregressive half reads, of a prompt, its images and a size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from transformers import GlmImageProcessor

from omnistage.stages.glm_image.grids import ID_SIDE, Grid, Ints, positions_of, prompt_positions
from omnistage.stages.worker.failure import RequestError

PROCESSOR = "processor"  # the component's folder


@dataclass(frozen=True, slots=True)
class SourcePatches:
    """Images to edit as the processor cuts them: float32 [n, size], and int64 grids [images, 3]."""

    pixels: torch.Tensor
    grids: torch.Tensor


@dataclass(frozen=True, slots=True)
class PriorPrompt:
    """The `ids` that are read; then those of the grids in `made` are, the last of them the image's.

    `is_source`: true for ids that stand for those of images to edit, which are `sources`.
    """

    ids: Ints
    made: Sequence[Grid]
    is_source: npt.NDArray[np.bool_]
    sources: SourcePatches | None = None

    @classmethod
    def of_ids(cls, ids: Sequence[int], made: Sequence[Grid]) -> "PriorPrompt":
        """A prompt without images."""
        return cls(np.array(ids, np.int64), made, np.zeros(len(ids), bool))

    @property
    def image(self) -> Grid:
        """Returns the grid of the image that is made."""
        return self.made[-1]

    @property
    def num_made(self) -> int:
        """Returns how many ids are made."""
        return sum(rows * columns for rows, columns in self.made)

    @property
    def positions(self) -> tuple[Ints, Ints]:
        """Returns where the ids that are read stand [n, 3], and those that are made."""
        grids = [] if self.sources is None else self.sources.grids[:, 1:].tolist()
        read, start = prompt_positions(self.is_source, grids)
        return read, positions_of(start, self.made)

    def with_sources(self, ids: Ints) -> "PriorPrompt":
        """Returns it with the ids of its images in their places."""
        filled = self.ids.copy()
        filled[self.is_source] = ids
        return replace(self, ids=filled)

    def image_ids(self, made: Sequence[int]) -> Sequence[int]:
        """The image's own of all that were made."""
        rows, columns = self.image
        return made[len(made) - rows * columns :]


class PriorPrompts:
    """The pipeline's own processor: its template, its tokenizer and its tags of sizes."""

    def __init__(self, model: str) -> None:
        """`model`: a pipeline's folder or hub name."""
        self.processor = GlmImageProcessor.from_pretrained(model, subfolder=PROCESSOR)
        self._marks = sorted(set(self.processor.tokenizer.all_special_tokens))

    def of(self, text: str, sides: Grid, images: Sequence[Image.Image] = ()) -> PriorPrompt:
        """The prompt of one image, [height, width] pixels, and of images to edit.

        Raises RequestError for a size that is no multiple of 32, and for a text with marks that are
        the processor's, such as a size tag.
        """
        self._check(text, dict(zip(("height", "width"), sides, strict=True)))
        height, width = sides
        given = [{"type": "image", "image": image} for image in images]
        told = self.processor.apply_chat_template(
            [[{"role": "user", "content": [*given, {"type": "text", "text": text}]}]],
            tokenize=True,
            processor_kwargs={"target_h": height, "target_w": width},
            return_dict=True,
            return_tensors="pt",
        )
        ids = told["input_ids"][0].numpy()
        grids: list[Grid] = [
            (rows, columns) for _, rows, columns in told["image_grid_thw"].tolist()
        ]
        if not images:
            image, draft = grids
            return PriorPrompt.of_ids(ids, [draft, image])
        sources = SourcePatches(told["pixel_values"], told["image_grid_thw"][:-1])
        return PriorPrompt(ids, grids[-1:], ids == self.processor.image_token_id, sources)

    def _check(self, text: str, sides: Mapping[str, int]) -> None:
        for name, side in sides.items():
            if side % ID_SIDE:
                message = f"{name} is {side}; this model's sides are multiples of {ID_SIDE}"
                raise RequestError(400, message, param="size", code="invalid_value")
        for mark in self._marks:
            if mark in text:
                message = f"has {mark!r}, which only the model's own processor writes"
                raise RequestError(400, message, param="prompt", code="invalid_value")
