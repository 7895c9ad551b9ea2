"""What the thinker's forward makes of what entered it."""

from typing import Any

import pytest
import torch
from vllm.model_executor.models.qwen2_5_omni_thinker import (
    Qwen2_5OmniThinkerForConditionalGeneration,
)

from omnistage.stages.qwen2_5_omni.thinker_model import Qwen2_5OmniThinker

HIDDEN = torch.tensor([[100.0], [200.0], [300.0]])


class Lines:
    """A step table as far as the forward asks it."""

    def lines(self, count: int) -> torch.Tensor:
        return torch.arange(1, count + 1)


def test_rows_have_the_embeddings_that_entered_though_layers_overwrite_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's fused norm adds to the first residual in place, and that is the embeddings."""

    def forward(
        self: Any, input_ids: Any, positions: Any, tensors: Any, inputs_embeds: torch.Tensor
    ) -> torch.Tensor:
        inputs_embeds.fill_(-1)
        return HIDDEN

    monkeypatch.setattr(Qwen2_5OmniThinkerForConditionalGeneration, "forward", forward)
    model: Any = Qwen2_5OmniThinker.__new__(Qwen2_5OmniThinker)
    torch.nn.Module.__init__(model)
    model.table = Lines()
    model.exported = torch.zeros(5, 1)
    model.is_medium = torch.tensor([[False], [True], [False], [False]])
    entered = torch.tensor([[1.0], [2.0], [3.0]])
    assert model.forward(None, torch.arange(3), None, entered) is HIDDEN
    assert model.exported[:, 0].tolist() == [0, 101, 200, 303, 0]
