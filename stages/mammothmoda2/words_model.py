"""MammothModa2's language model for words in vLLM: Qwen3-VL of its weights for what is read."""

from collections.abc import Iterable

import torch
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration

from omnistage.stages.vllm.models.shards import weights_below

LANGUAGE_MODEL = "llm_model."
DRAWING = ".gen_"  # in the names of weights of image ids


class MammothModa2Words(Qwen3VLForConditionalGeneration):
    """vLLM's Qwen3-VL, whose weights are a part of a checkpoint."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the language model and its vision tower, and nothing of what draws."""
        own = weights_below(weights, LANGUAGE_MODEL, DRAWING)
        loaded: set[str] = super().load_weights(own)
        return loaded
