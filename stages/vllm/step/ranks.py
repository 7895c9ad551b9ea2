"""Finds the lane of a process of an engine, and whether it speaks for its ranks."""

import logging

import torch
from torch import distributed
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import (
    get_pp_group,
    get_tp_group,
    model_parallel_is_initialized,
)

logger = logging.getLogger(__name__)

CHECK_EVERY = 64  # steps
FACTOR = 1_000_003


def own_lane(config: VllmConfig) -> int:
    """The lane of this process: vLLM's data-parallel rank, which a dense model does not know."""
    return int(config.parallel_config.data_parallel_index)


def is_lockstep(config: VllmConfig) -> bool:
    """Returns whether the engines of all lanes compute each layer together, as those of experts
    do.
    """
    return config.parallel_config.data_parallel_size > 1


def is_first_of_equals() -> bool:
    """Returns whether it is the first of the ranks that compute the same: the one that tells of
    it.
    """
    return not model_parallel_is_initialized() or get_tp_group().is_first_rank


def is_end_of_pipeline() -> bool:
    """Returns whether its layers are the model's last: there the forward returns hidden states."""
    return not model_parallel_is_initialized() or get_pp_group().is_last_rank


def first_problem(own: str) -> str:
    """Returns what went wrong in the first of all ranks of this lane in which something did, or
    nothing.

    Each rank asks, with its own problem. Not those of other lanes: they may be in a step.
    """
    for group in (get_tp_group(), get_pp_group()):
        told = [""] * group.world_size
        distributed.all_gather_object(told, own, group=group.cpu_group)
        own = next(filter(None, told), "")
    return own


def is_read_last() -> bool:
    """Returns whether vLLM reads this rank's answer to a call after those of all others of the
    lane.
    """
    return get_tp_group().is_last_rank and get_pp_group().is_last_rank


class RankCheck:
    """Compares what tensor-parallel ranks computed alike, by a checksum each `CHECK_EVERY` steps.

    All of them look at the same steps. A difference is told once, and so is that there is none, as
    warnings: an engine's processes log nothing less.
    """

    def __init__(self) -> None:
        self._sum: torch.Tensor | int = 0  # of 64 bits, on the values' device
        self._num_steps = 0
        self._told: bool | None = None

    def look(self, values: torch.Tensor) -> None:
        """Reads the results of this rank's step."""
        read = values.contiguous().view(torch.uint8).flatten().long()
        places = torch.arange(1, len(read) + 1, device=read.device)
        self._sum = self._sum * FACTOR + (read * places).sum()
        self._num_steps += 1
        if self._num_steps % CHECK_EVERY == 0:
            self._compare()

    def _compare(self) -> None:
        group = get_tp_group()
        sums: list[int] = [0] * group.world_size
        distributed.all_gather_object(sums, int(self._sum), group=group.cpu_group)
        is_equal = len(set(sums)) == 1
        if is_equal == self._told or not group.is_first_rank:
            return
        self._told = is_equal
        if is_equal:
            logger.warning("%d ranks agree after %d steps", len(sums), self._num_steps)
        else:
            logger.error("the ranks do not agree: what they computed has checksums %s", sums)
