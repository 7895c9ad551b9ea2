"""From a prompt and a size to the ids that GLM-Image's autoregressive half reads and makes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import GlmImageProcessor

from omnistage.stages.glm_image.grids import ID_SIDE, Grid, Ints, positions_of
from omnistage.stages.worker.failure import RequestError

PROCESSOR = "processor"  # the component's folder


@dataclass(frozen=True, slots=True)
class PriorPrompt:
    """The `ids` that are read; then those of a draft are made, and then those of the image."""

    ids: Sequence[int]
    draft: Grid
    image: Grid

    @property
    def num_made(self) -> int:
        """Returns how many ids are made."""
        return sum(rows * columns for rows, columns in (self.draft, self.image))

    @property
    def made_positions(self) -> Ints:
        """Returns where those that are made stand: [num_made, 3]."""
        return positions_of(len(self.ids), [self.draft, self.image])

    def image_ids(self, made: Sequence[int]) -> Sequence[int]:
        """The image's own of all that were made."""
        rows, columns = self.image
        return made[len(made) - rows * columns :]


class PriorPrompts:
    """The pipeline's own processor: its template, its tokenizer and its tags of sizes."""

    def __init__(self, model: str) -> None:
        """`model`: a pipeline's folder or hub name."""
        self._processor = GlmImageProcessor.from_pretrained(model, subfolder=PROCESSOR)
        self._marks = sorted(set(self._processor.tokenizer.all_special_tokens))

    def of(self, text: str, sides: Grid) -> PriorPrompt:
        """The prompt of one image, [height, width] pixels.

        Raises RequestError for a size that is no multiple of 32, and for a text with marks that are
        the processor's, such as a size tag.
        """
        self._check(text, dict(zip(("height", "width"), sides, strict=True)))
        height, width = sides
        told = self._processor.apply_chat_template(
            [[{"role": "user", "content": [{"type": "text", "text": text}]}]],
            tokenize=True,
            processor_kwargs={"target_h": height, "target_w": width},
            return_dict=True,
            return_tensors="pt",
        )
        image, draft = ((rows, columns) for _, rows, columns in told["image_grid_thw"].tolist())
        return PriorPrompt(told["input_ids"][0].tolist(), draft, image)

    def _check(self, text: str, sides: Mapping[str, int]) -> None:
        for name, side in sides.items():
            if side % ID_SIDE:
                message = f"{name} is {side}; this model's sides are multiples of {ID_SIDE}"
                raise RequestError(400, message, param="size", code="invalid_value")
        for mark in self._marks:
            if mark in text:
                message = f"has {mark!r}, which only the model's own processor writes"
                raise RequestError(400, message, param="prompt", code="invalid_value")
