"""A model of vLLM's whose tokens are described by the step table."""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn
from vllm.model_executor.models.interfaces import SupportsMRoPE

from omnistage.stages.vllm.step.step_table import StepTable


class StepModel(nn.Module):
    """Finds its tokens' lines of the table before the forward, of which a family has the math."""

    table: StepTable

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Return a row for each of the runner's n tokens; vLLM calls it with these names."""
        lines = self.table.lines(input_ids.shape[0])
        return self.run_step(input_ids, positions, self.table.columns[lines], lines)

    @abstractmethod
    def run_step(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> torch.Tensor:
        """Return rows [n, …]; `columns` are what the table has in each token's line."""


class PlainPositions(SupportsMRoPE):
    """Counts the tokens for vLLM's M-RoPE: the true positions come in the step table."""

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[torch.Tensor, int]:
        """Return positions int64 [3, n] of a prompt; a later token's is its index."""
        return torch.arange(len(input_tokens)).expand(3, -1), 0
