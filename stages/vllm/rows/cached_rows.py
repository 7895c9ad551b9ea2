"""The rows that a row cache keeps, on the host, beside the exporter."""

from collections.abc import Sequence

import torch

from omnistage.stages.vllm.rows.row_index import Places


class CachedRows:
    """A place for each row; the system gives memory to those that were written."""

    def __init__(self, num_places: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        self._rows = torch.empty(num_places, *shape, dtype=dtype, device="cpu")

    def keep(self, places: Places, values: torch.Tensor) -> None:
        """Take the lines whose place is not -1."""
        is_kept = torch.from_numpy(places >= 0)
        self._rows[torch.from_numpy(places)[is_kept]] = values[is_kept]

    def take(self, places: Places) -> torch.Tensor:
        """A copy of the rows at these places."""
        return self._rows[torch.from_numpy(places)]
