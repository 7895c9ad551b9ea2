"""Texts that the language model encodes for the pipeline, and images of conversations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.stages.messages.arguments import ArgumentsToCome, RowsToCome

Span = tuple[int, int]
# Arguments of the pipeline, and those that are their masks.
PROMPT, NEGATIVE = "prompt_embeds", "negative_prompt_embeds"
MASKS = {PROMPT: "prompt_attention_mask", NEGATIVE: "negative_prompt_attention_mask"}
REPLACES = ["prompt", "negative_prompt"]


@dataclass(frozen=True, slots=True)
class TextToEncode:
    """A prompt of the engine; rows of the positions in `left_out` are not given on."""

    prompt: Mapping[str, Any]
    left_out: Sequence[Span] = field(default=())

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> "TextToEncode":
        """A text without images."""
        return cls({"prompt_token_ids": list(ids)})

    @classmethod
    def of_chat(cls, prompt: Mapping[str, Any], image_id: int) -> "TextToEncode":
        """A conversation as vLLM rendered it: its images are left out."""
        return cls(prompt, spans_of(np.asarray(prompt["prompt_token_ids"]) == image_id))

    @property
    def num_tokens(self) -> int:
        """Returns how many tokens are read."""
        return len(self.prompt["prompt_token_ids"])

    @property
    def num_rows(self) -> int:
        """Returns how many rows are given on."""
        return self.num_tokens - sum(stop - start for start, stop in self.left_out)


Texts = Mapping[str, Sequence[TextToEncode]]  # by arguments of the pipeline


def announced(texts: Texts) -> ArgumentsToCome:
    """Return what the pipeline's stage must know of them before they come."""
    rows = {
        name: RowsToCome(
            0,
            [one.num_rows for one in given],
            MASKS[name],
            [list(one.left_out) for one in given] if any(one.left_out for one in given) else [],
        )
        for name, given in texts.items()
    }
    return ArgumentsToCome(rows=rows, replaces=REPLACES)


def spans_of(is_one: npt.NDArray[np.bool_]) -> list[Span]:
    """Return where runs of true values begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_one.astype(np.int8), [0]])))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
