"""vLLM's schedulers with a bound on what a request reads from the prefix cache.

Selected by the engine argument `scheduler_cls` for engines that export rows. A request whose rows
leave reads no more than the row cache has rows of; the others read all that there is.
"""

from collections.abc import Callable

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
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

    def __getattr__(self, name: str) -> object:
        return getattr(self._request, name)


class _BoundedManager:
    """The scheduler's manager of its KV cache, in which some requests find less than there is."""

    def __init__(
        self, manager: KVCacheManager, num_readable: Callable[[Request], int | None]
    ) -> None:
        self._manager = manager
        self._num_readable = num_readable

    def __getattr__(self, name: str) -> object:
        return getattr(self._manager, name)

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """The blocks that a request reads, as vLLM asks for them when it could start."""
        num_readable = self._num_readable(request)
        bounded: object = request if num_readable is None else _Bounded(request, num_readable)
        return self._manager.get_computed_blocks(bounded)

    def get_computed_blocks_for_connector(
        self, request: Request
    ) -> tuple[KVCacheBlocks | int | bool, ...]:
        """Returns what vLLM 0.27 expects where there is a connector; layers of one kind do not
        diverge.
        """
        return (*self.get_computed_blocks(request), False)


class RowReadingScheduler(Scheduler):
    """For engines without async scheduling."""

    kv_cache_manager: KVCacheManager

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._half = self.connector.scheduler_half
        manager = _BoundedManager(self.kv_cache_manager, self._half.exports.num_readable)
        self.kv_cache_manager = manager

    def schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        self._half.exports.begin_step(self.hash_block_size)
        output: SchedulerOutput = super().schedule(*args, **kwargs)
        return output

    def reset_prefix_cache(self, *args: object, **kwargs: object) -> bool:
        """Resets like the scheduler; kept rows go too."""
        self._half.exports.clear_row_cache()
        is_reset: bool = super().reset_prefix_cache(*args, **kwargs)
        return is_reset


class RowReadingAsyncScheduler(RowReadingScheduler, AsyncScheduler):
    """For engines with async scheduling."""
