"""Makes the ids that are read, of a text and a size, and counts those made and rows that leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.stage_configs.json_types import Json
from omnistage.stages.mammothmoda2.step_schema import (
    ANY,
    IMAGE_END,
    LINE_END,
    UNGUIDED,
)
from omnistage.stages.mammothmoda2.tokens import SEEN, MammothTokenizer
from omnistage.stages.worker.failure import RequestError

ID_SIDE = 32  # pixels of the side of what one id stands for
DEFAULT_SIDE = 1024
OWN = 10  # the prompt's last ids, which an image's beginning is; they are all that is read unguided
SYSTEM = "You are a helpful image generator."
NEGATIVE = (
    "deformed, blurry, over saturation, bad anatomy, disfigured, poorly drawn face, mutation, "
    "mutated, extra_limb, ugly, poorly drawn hands, fused fingers, messy drawing, broken legs "
    "censor, censored, censor_bar Create an image from the instruction."
)  # as published
Grid = tuple[int, int]  # rows, columns
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """The `ids` that are read; then the image's follow, none if there is no `grid`.

    `left_out`: spans of positions whose rows the denoiser does not read.
    """

    ids: Sequence[int]
    grid: Grid | None = None
    left_out: Sequence[Span] = ()
    num_image_rows: int = 0

    @property
    def num_ids(self) -> int:
        """Returns how many ids an image has, with the ends of its lines."""
        return 0 if self.grid is None else self.grid[0] * (self.grid[1] + 1)

    @property
    def num_made(self) -> int:
        """Returns how many ids are sampled: its end, too, and one so that the end is read."""
        return 1 if self.grid is None else self.num_ids + 2

    @property
    def num_rows(self) -> int:
        """Returns how many rows are given on."""
        num_read = len(self.ids) + self.num_made - 1
        return num_read - sum(stop - start for start, stop in self.left_out)

    @property
    def num_unguided(self) -> int:
        """Returns how many of the prompt's ids count unguided."""
        return 0 if self.grid is None else OWN

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the step's columns of the prompt."""
        places = np.arange(len(self.ids)) - len(self.ids) + self.num_unguided
        return {UNGUIDED: np.maximum(places, -1)}

    @property
    def followers(self) -> list[float]:
        """Returns which id must follow each that is made."""
        if self.grid is None:
            return [ANY]
        line = self.grid[1] + 1
        numbers = np.arange(1, self.num_made + 1)
        kinds = np.where(numbers % line == line - 1, LINE_END, ANY)
        found: list[float] = np.where(numbers >= self.num_ids, IMAGE_END, kinds).tolist()
        return found


class Prompts:
    """A checkpoint's tokenizer and template, and which of its ids are the denoiser's."""

    def __init__(self, folder: Path, config: Json) -> None:
        """`config`: the checkpoint's."""
        self._first_image_id: int = config["llm_config"]["gen_vocab_start_index"]
        if config.get("gen_text_condition_with_answer"):
            raise ValueError("gen_text_condition_with_answer is not served")
        mode = config.get("gen_condition_mode", "text_image")
        if mode != "text_image":
            raise ValueError(f"gen_condition_mode {mode!r} is not served; 'text_image' is")
        self.tokens = MammothTokenizer(folder, self._first_image_id)
        self._seen = [self.tokens.ids[mark] for mark in SEEN]

    def image(self, text: str, fields: Mapping[str, object]) -> IdsPrompt:
        """Return the prompt of one image.

        Raises RequestError for a size that is no multiple of 32, and for a text with marks.
        """
        rows, columns = grid = self._side("height", fields), self._side("width", fields)
        self._check(text, "prompt")
        ids = self.tokens.of(
            [("system", SYSTEM), ("user", text)],
            add_generation_prompt=True,
            t2i_generate=True,
            ar_height=rows,
            ar_width=columns,
        )
        return self._read(ids, grid)

    def negative(self, text: str | None) -> IdsPrompt:
        """Return the text that a picture is moved away from; None: the published one."""
        self._check(text or "", "negative_prompt")
        return IdsPrompt(
            self.tokens.of([("system", SYSTEM), ("user", NEGATIVE if text is None else text)])
        )

    def _read(self, ids: Sequence[int], grid: Grid) -> IdsPrompt:
        given = np.asarray(ids)
        is_image = given >= self._first_image_id
        is_own = np.arange(len(given)) >= len(given) - OWN
        is_text = ~is_image & ~np.isin(given, self._seen) & ~is_own
        num_made = grid[0] * (grid[1] + 1) + 1  # with the image's end
        wanted = np.concatenate([is_text | (is_image & is_own), np.ones(num_made, bool)])
        edges = np.flatnonzero(np.diff(np.concatenate([[0], ~wanted, [0]])))
        left_out = [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
        num_image_rows = int((is_image & is_own).sum()) + num_made
        return IdsPrompt(ids, grid, left_out, num_image_rows)

    def _side(self, name: str, fields: Mapping[str, object]) -> int:
        side = fields.get(name) or DEFAULT_SIDE
        assert isinstance(side, int)
        if side % ID_SIDE:
            message = f"{name} is {side}; this model's sides are multiples of {ID_SIDE}"
            raise RequestError(400, message, param="size", code="invalid_value")
        return side // ID_SIDE

    def _check(self, text: str, param: str) -> None:
        mark = self.tokens.mark_in(text)
        if mark is not None:
            message = f"has {mark!r}, which only the model's own template writes"
            raise RequestError(400, message, param=param, code="invalid_value")
