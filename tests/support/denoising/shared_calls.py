"""Calls of tiny denoisers that four processes share, compared with calls of their own."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from support.tiny_pipelines import Settings, error, quiet
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn, start_processes
from torch.utils._python_dispatch import TorchDispatchMode

from omnistage.stages.diffusion.blocks.compiled import compile_forward
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.loading.float8 import quantize_block
from omnistage.stages.diffusion.merging.calls import nested
from omnistage.stages.diffusion.merging.learning import first_calls
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.parallelism import spread

CPU = torch.device("cpu")
NUM_RANKS = 4
# Tokens of texts and pictures are multiples of the ranks, or not, or fewer than they.
SETTINGS = (Settings(0), Settings(1, height=48), Settings(2, height=48, width=80))
SEQUENCES = "omnistage.stages.diffusion.ranks.sequences"
COUNTED = {
    "sizes": "torch.distributed.all_gather",
    "exchanges": "torch.distributed.all_to_all_single",
    "gathers": f"{SEQUENCES}.GATHER",
    "sums": "torch.distributed.all_reduce",
}


@dataclass(frozen=True)
class Sharing:
    """A tiny pipeline's denoiser, and how ranks share its calls."""

    name: str
    ways: Mapping[str, int]
    guidance_ranks: int = 1
    attention: str = ""
    is_compiled: bool = False
    has_mask: bool = False
    is_quantized: bool = False

    @property
    def options(self) -> RankOptions:
        """Returns the engine's arguments."""
        return RankOptions(self.ways, self.guidance_ranks)


@dataclass(frozen=True)
class Shared:
    """The outcome of one call, made twice."""

    errors: tuple[float, float]
    second: Mapping[str, int]  # how often it did what is counted


@dataclass(frozen=True)
class Alone:
    """A denoiser that nobody shares yet, and what its calls come to."""

    case: Sharing
    denoiser: Any
    calls: Sequence[tuple[Mapping[str, Any], torch.Tensor]]


def shared_calls(cases: Sequence[Sharing], folder: Path) -> list[list[Shared]]:
    """Make all calls of all cases; each process is a rank of each case.

    All are forks of one process that has done nothing but import. What calls come to alone is
    computed once, not by each rank.
    """
    with patch.dict(os.environ, OMP_NUM_THREADS="1"):
        spawn(_fork, (list(cases), str(folder)), nprocs=1)
    found: list[list[Shared]] = torch.load(folder / "found", weights_only=False)
    return found


def _fork(_: int, cases: Sequence[Sharing], folder: str) -> None:
    torch.set_num_threads(1)
    assert len(os.listdir("/proc/self/task")) == 1  # a lock of another thread would stay held
    start_processes(_compute_alone, (cases, folder), nprocs=1, start_method="fork")
    start_processes(_rank, (folder,), nprocs=NUM_RANKS, start_method="fork")


def _compute_alone(_: int, cases: Sequence[Sharing], folder: str) -> None:
    torch.save([_alone(case) for case in cases], f"{folder}/alone")


def _rank(rank: int, folder: str) -> None:
    store = FileStore(f"{folder}/store", NUM_RANKS)
    limit = timedelta(minutes=5)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=limit)
    found = [_shared(one) for one in torch.load(f"{folder}/alone", weights_only=False)]
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.destroy_process_group()


@cache
def _inputs(name: str) -> Sequence[Mapping[str, Any]]:
    """Return what a tiny pipeline first calls its denoiser with."""
    pipeline: Any = quiet(make_tiny(name))
    modules = {"transformer": pipeline.transformer}
    arguments = [settings.arguments(name) for settings in SETTINGS]
    calls = [first_calls(pipeline, modules, one)["transformer"] for one in arguments]
    return [dict(nested(call.arguments)) for call in calls]


@torch.inference_mode()
def _alone(case: Sharing) -> Alone:
    denoiser = make_tiny(case.name).transformer
    if case.is_quantized:
        for block in denoiser.transformer_blocks:
            assert quantize_block(block, CPU)
    calls = []
    for inputs in _inputs(case.name):
        given = dict(inputs)
        if case.has_mask:
            mask = torch.ones(given["encoder_hidden_states"].shape[:2], dtype=torch.bool)
            mask[:, -1] = False
            given["encoder_hidden_states_mask"] = mask
        calls.append((given, _tensor(denoiser(**given))))
    return Alone(case, denoiser, calls)


@torch.inference_mode()
def _shared(alone: Alone) -> list[Shared]:
    """The calls of one case, on this rank."""
    case, denoiser = alone.case, alone.denoiser
    if case.attention:
        denoiser.set_attention_backend(case.attention)
    if case.is_compiled:
        for block in denoiser.transformer_blocks:
            with patch("torch.compile", lambda forward, dynamic: _traced(forward)):
                compile_forward(block)
    spread([denoiser], case.options, CPU)
    outcomes = []
    for given, expected in alone.calls:
        first = error(_tensor(denoiser.forward(**given)), expected)
        with _Counts() as counts:
            second = error(_tensor(denoiser.forward(**given)), expected)
        outcomes.append(Shared((first, second), dict(counts.of)))
    return outcomes


_compile = torch.compile


def _traced(forward: Any) -> Any:
    """What torch traces as it does before it makes code of it."""
    return _compile(forward, dynamic=True, backend="eager")


def _tensor(output: Any) -> torch.Tensor:
    return output[0]  # type: ignore[no-any-return]


class _Counts(TorchDispatchMode):
    """Counts collectives, and numbers that the host reads of the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of = Counter[str]()
        self._patches = ExitStack()

    def __enter__(self) -> "_Counts":
        for name, place in COUNTED.items():
            module, _, function = place.rpartition(".")
            whole = getattr(import_module(module), function)
            self._patches.enter_context(patch(place, self._counting(name, whole)))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def _counting(self, name: str, whole: Any) -> Any:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.of[name] += 1
            return whole(*args, **kwargs)

        return counting

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.of["reads"] += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        self._patches.close()
