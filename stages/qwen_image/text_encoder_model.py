"""Qwen-Image's text encoder as a vLLM model: the text part of Qwen2.5-VL, without a head.

Math: transformers' Qwen2_5_VLTextModel. Text has the same position on all three axes of M-RoPE, so
that they are those of plain RoPE, and the layers are vLLM's Qwen2.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import maybe_prefix

from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.step.step_table import StepTable

NOT_TEXT = ("visual.", "model.visual.", "lm_head.")


def text_config(config: Any) -> Any:
    """`hf_overrides`: the text part's own configuration with our architecture."""
    text = config.get_text_config()
    text.architectures = ["OmnistageQwenTextEncoder"]
    (getattr(text, "rope_parameters", None) or {}).pop("mrope_section", None)
    return text


def text_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The text part's, by the names that they have in it; checkpoints have one of two layouts."""
    for name, weight in weights:
        if not name.startswith(NOT_TEXT):
            yield name.removeprefix("model.").removeprefix("language_model."), weight


class QwenTextEncoder(nn.Module):
    """The last hidden states, after the final norm, are what the step table exports."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        self.model = Qwen2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.table = StepTable(vllm_config, torch.get_default_device(), HIDDEN_STATES)
        self.exported = self.table.make_export(config.hidden_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding table."""
        return self.model.embed_input_ids(input_ids)

    def forward(self, input_ids: Any, positions: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Hidden states [num_tokens, hidden_size], which go to the table's lines too."""
        hidden = self.model(input_ids, positions, *args, **kwargs)
        self.exported[self.table.lines(hidden.shape[0])] = hidden
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """All the same: the one token that vLLM samples from them is nobody's."""
        return hidden_states.new_zeros(hidden_states.shape[0], self.config.vocab_size)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """All but the vision tower and the head."""
        return {f"model.{name}" for name in self.model.load_weights(text_weights(weights))}
