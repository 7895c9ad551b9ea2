"""Layers of a vocoder whose streams go on from chunk to chunk."""

from collections.abc import Callable

import torch

from omnistage.stages.vocoder.state import StateLayout, StreamBatch


class CarriedStreams:
    """So many streams with the state of some layers."""

    def __init__(
        self,
        layers: Callable[[torch.Tensor, StreamBatch], torch.Tensor],
        layout: StateLayout,
        num: int,
        device: torch.device,
        *,
        steps: int,
    ) -> None:
        """`steps`: the dimension of hidden states that counts them."""
        self._layers = layers
        self._steps = steps
        self._rows = torch.zeros(num, layout.num_elements, device=device)
        self._positions = torch.zeros(num, dtype=torch.int64, device=device)

    def put(self, streams: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """The next chunk of some of them."""
        rows, positions = self._rows[streams], self._positions[streams]
        started = (positions > 0).to(rows.dtype)[:, None, None]
        output = self._layers(hidden, StreamBatch(rows, positions, started))
        self._rows[streams] = rows
        self._positions[streams] += hidden.shape[self._steps]
        return output
