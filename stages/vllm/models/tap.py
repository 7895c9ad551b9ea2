"""A tap on a decoder layer: its input, copied to a buffer, in eager, compiled and graph modes."""

import torch
from torch import nn
from vllm.utils.torch_utils import direct_register_custom_op


def _tap(rows: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor) -> None:
    torch.add(hidden_states, residual, out=rows[: hidden_states.shape[0]])


def _tap_fake(rows: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor) -> None:
    return None


direct_register_custom_op(
    op_name="omnistage_tap", op_func=_tap, mutates_args=["rows"], fake_impl=_tap_fake
)


class Tap:
    """`rows` [max_tokens, hidden]: hidden_states + residual as they enter the tapped layer."""

    def __init__(
        self, max_tokens: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rows = torch.zeros(max_tokens, hidden_size, dtype=dtype, device=device)

    def attach(self, layer: nn.Module) -> None:
        """Watch a layer that vLLM calls as (positions, hidden_states, residual).

        The rows are a buffer of the layer: compiled code takes those as it takes weights.
        """
        layer.register_buffer("omnistage_rows", self.rows, persistent=False)
        layer.register_forward_pre_hook(_before)


def _before(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    torch.ops.vllm.omnistage_tap(module.omnistage_rows, args[1], args[2])
