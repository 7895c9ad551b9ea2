"""A prompt's token ids, as Qwen-Image's pipeline makes them."""

import inspect
from collections.abc import Sequence
from typing import Any, Self

from diffusers import DiffusionPipeline


class PromptTokens:
    """Template, tokenizer and limits of one pipeline.

    `num_dropped`: leading ids whose hidden states the pipeline drops. `max_length`: ids of the
    longest text; what follows is not read by the pipeline, and later ids change no earlier state.
    """

    def __init__(self, pipeline: Any) -> None:
        self._tokenizer = pipeline.tokenizer
        self._template: str = pipeline.prompt_template_encode
        self.num_dropped: int = pipeline.prompt_template_encode_start_idx
        read = inspect.signature(pipeline.__call__).parameters["max_sequence_length"].default
        self.max_length = self.num_dropped + min(read, pipeline.tokenizer_max_length)

    @classmethod
    def of_model(cls, model: str) -> Self:
        """Loads the tokenizer of a pipeline's folder or hub name, and nothing else."""
        config = DiffusionPipeline.load_config(model)
        parts = [name for name, value in config.items() if isinstance(value, list)]
        without = dict.fromkeys(name for name in parts if name != "tokenizer")
        return cls(DiffusionPipeline.from_pretrained(model, **without))

    def of(self, text: str) -> Sequence[int]:
        """The ids of one prompt."""
        ids: list[int] = self._tokenizer(self._template.format(text)).input_ids
        return ids[: self.max_length]
