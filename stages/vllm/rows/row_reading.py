"""vLLM's schedulers with a bound on what a request reads from the prefix cache.

Selected by the engine argument `scheduler_cls` for engines that export rows. A request whose rows
leave reads no more than the row cache has rows of; the others read all that there is.
"""

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class _Bounded:
    """A request as the prefix cache sees it: as if it ended one token behind what it may read.

    Of a request's last token vLLM never reads, since it needs something to compute.
    """

    def __init__(self, request: Request, num_readable: int) -> None:
        self._request = request
        self.num_tokens = min(request.num_tokens, num_readable + 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class _BoundedManager:
    """The scheduler's manager of its KV cache, in which some requests find less than there is."""

    def __init__(self, manager: Any, num_readable: Callable[[Request], int | None]) -> None:
        self._manager = manager
        self._num_readable = num_readable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def get_computed_blocks(self, request: Request) -> Any:
        """The blocks that a request reads, as vLLM asks for them when it could start."""
        num_readable = self._num_readable(request)
        bounded: Any = request if num_readable is None else _Bounded(request, num_readable)
        return self._manager.get_computed_blocks(bounded)

    def get_computed_blocks_for_connector(self, request: Request) -> Any:
        """Returns what vLLM 0.27 expects where there is a connector; layers of one kind do not
        diverge.
        """
        return (*self.get_computed_blocks(request), False)


class _ReadsRows:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        self._half = scheduler.connector.scheduler_half
        manager = _BoundedManager(scheduler.kv_cache_manager, self._half.num_readable)
        scheduler.kv_cache_manager = manager

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        scheduler: Any = self
        self._half.begin_step(scheduler.hash_block_size)
        output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        return output

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Resets like the scheduler; kept rows go too."""
        self._half.clear_row_cache()
        is_reset: bool = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]
        return is_reset


class RowReadingScheduler(_ReadsRows, Scheduler):
    """For engines without async scheduling."""


class RowReadingAsyncScheduler(_ReadsRows, AsyncScheduler):
    """For engines with async scheduling."""
