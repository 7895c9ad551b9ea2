"""Communication of lanes that share experts on a CPU, where vLLM's communicator lacks it."""

from typing import Any, Self

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class LaneCommunicator(CpuCommunicator):
    """vLLM's, with gathers and scatters of as many lines as each rank has."""

    @classmethod
    def of(cls, group: Any) -> Self:
        """For a group of vLLM's, in the place of the one that it has."""
        return cls(group.cpu_group, group.device, group.device_group, group.unique_name)

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """The lines of all ranks, of each as many as `sizes` says."""
        if isinstance(input_, list):
            return [self._gathered(one, dim, sizes) for one in input_]
        return self._gathered(input_, dim, sizes)

    def _gathered(self, lines: torch.Tensor, dim: int, sizes: list[int] | None) -> torch.Tensor:
        assert dim == 0
        sizes = sizes or [len(lines)] * self.world_size
        padded = lines.new_zeros(max(sizes), *lines.shape[1:])
        padded[: len(lines)] = lines
        gathered = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(gathered, padded, group=self.device_group)
        return torch.cat([one[:size] for one, size in zip(gathered, sizes, strict=True)])

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """The sum of all ranks' lines, of which each takes its own."""
        assert dim == 0
        sizes = sizes or [len(input_) // self.world_size] * self.world_size
        total = input_.contiguous().clone()
        dist.all_reduce(total, group=self.device_group)
        start = sum(sizes[: self.rank_in_group])
        return total[start : start + sizes[self.rank_in_group]].contiguous()
