"""Counts what torch and Triton compile in this process, by what both offer for that.

Other compilers, such as nvcc or numba, do not report what they do.
"""

from contextlib import suppress
from typing import Any

import torch
from torch._dynamo.callback import callback_handler, on_compile_end, on_compile_start

from omnistage.stages.worker.process.compiles import CompileCounter, own_counter

_counter: CompileCounter | None = None


def count_compiles() -> None:
    """Count from now on, if this process belongs to a stage."""
    global _counter
    _counter = _counter or own_counter()
    if _counter is None or _begin in callback_handler.start_callbacks:
        return
    on_compile_start(_begin)
    on_compile_end(_end)
    if torch.version.cuda is not None:
        with suppress(ImportError):
            _count_kernels()


def _begin(*_: Any) -> None:
    """Count a compilation, or the recording of a CUDA graph, that torch begins."""
    if _counter is not None:
        _counter.begin()


def _end(*_: Any) -> None:
    if _counter is not None:
        _counter.end()


def _count_kernels() -> None:
    """Count Triton's kernels, each once it is compiled: one takes a second or two."""
    from triton import knobs  # type: ignore[import-untyped]

    before = knobs.compilation.listener

    def listen(*, cache_hit: bool, **told: Any) -> None:
        if not cache_hit:
            _begin()
            _end()
        if before is not None:
            before(cache_hit=cache_hit, **told)

    knobs.compilation.listener = listen
