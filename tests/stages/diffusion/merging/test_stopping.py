"""Cancelled calls end between two modules, not only between two steps."""

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import pytest
import torch
from support.denoising.begun_together import begin_together
from support.denoising.other_device import OTHER_CPU
from support.tiny_pipelines import TIMEOUT_S, Served, Settings, error, result

from omnistage.stages.diffusion.blocks.compiled import compile_forward
from omnistage.stages.diffusion.loading.components import Parts
from omnistage.stages.diffusion.loading.offload import OFFLOADS, offload
from omnistage.stages.diffusion.merging.stopping import Checkpoints, modules_below

LATER = {  # a module of each part, and one that comes after it
    "text_encoder_2": ("encoder.block.0", "encoder.final_layer_norm"),
    "transformer": ("x_embedder", "norm_out"),
    "vae": ("decoder.conv_in", "decoder.conv_out"),
}


class Gate:
    """Holds calls with `rows` rows before a module; counts those that come to a later one."""

    def __init__(self, part: Any, first: str, later: str, rows: int = 1) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.num_later = 0
        self._rows = rows
        part.get_submodule(first).register_forward_pre_hook(self._hold)
        part.get_submodule(later).register_forward_pre_hook(self._count)

    def _hold(self, module: Any, args: Any) -> None:
        if args[0].shape[0] == self._rows and not self.open.is_set():
            self.begun.set()
            assert self.open.wait(TIMEOUT_S)

    def _count(self, module: Any, args: Any) -> None:
        self.num_later += 1


@pytest.fixture
def flux() -> Iterator[Served]:
    torch.set_num_threads(1)
    below = Served("flux")
    yield below
    below.engine.close()


@pytest.mark.parametrize("part", LATER)
def test_a_cancelled_call_stops_at_the_next_module(part: str, flux: Served) -> None:
    gate = Gate(getattr(flux.pipeline, part), *LATER[part])
    job = flux.ask(Settings(0))
    assert gate.begun.wait(TIMEOUT_S)
    flux.engine.cancel(job)
    gate.open.set()
    with pytest.raises(CancelledError):
        job.result.result(TIMEOUT_S)
    assert error(result(flux.ask(Settings(1))), flux.expected(Settings(1))) < 1e-5
    assert gate.num_later == (2 if part == "transformer" else 1)  # the other's


def test_a_shared_forward_goes_on_for_who_still_waits(flux: Served) -> None:
    gate = Gate(flux.pipeline.transformer, *LATER["transformer"], rows=2)
    begin_together(flux.engine, 2)
    jobs = [flux.ask(Settings(seed, 20)) for seed in range(2)]
    assert gate.begun.wait(TIMEOUT_S)
    flux.engine.cancel(jobs[0])
    gate.open.set()
    with pytest.raises(CancelledError):
        jobs[0].result.result(TIMEOUT_S)
    assert error(result(jobs[1]), flux.expected(Settings(1, 20))) < 1e-5


def test_a_shared_forward_stops_when_all_are_cancelled(flux: Served) -> None:
    gate = Gate(flux.pipeline.transformer, *LATER["transformer"], rows=2)
    begin_together(flux.engine, 2)
    jobs = [flux.ask(Settings(seed, 20)) for seed in range(2)]
    assert gate.begun.wait(TIMEOUT_S)
    before = gate.num_later
    for job in jobs:
        flux.engine.cancel(job)
    gate.open.set()
    for job in jobs:
        with pytest.raises(CancelledError):
            job.result.result(TIMEOUT_S)
    assert gate.num_later == before


def test_what_a_stopped_call_has_computed_is_freed(flux: Served) -> None:
    computed: list[weakref.ref[torch.Tensor]] = []
    flux.pipeline.transformer.x_embedder.register_forward_hook(
        lambda module, args, result: computed.append(weakref.ref(result))
    )
    gate = Gate(flux.pipeline.transformer, "transformer_blocks.0.norm1", "norm_out")
    job = flux.ask(Settings(0))
    assert gate.begun.wait(TIMEOUT_S)
    assert computed[-1]() is not None
    flux.engine.cancel(job)
    gate.open.set()
    with pytest.raises(CancelledError):
        job.result.result(TIMEOUT_S)
    flux.engine.ping().result(TIMEOUT_S)
    assert computed[-1]() is None


@pytest.mark.parametrize("kind", OFFLOADS)
@pytest.mark.parametrize("part", LATER)
def test_an_offloaded_call_stops_at_the_next_module(part: str, kind: str) -> None:
    """Its encoders and decoders run in the engine's thread, in the middle of the request's code."""
    torch.set_num_threads(1)
    below = Served("flux", has_side_lanes=False, prepare=partial(offloaded, kind))
    gate = Gate(getattr(below.pipeline, part), *LATER[part])
    job = below.ask(Settings(0))
    assert gate.begun.wait(TIMEOUT_S)
    below.engine.cancel(job)
    gate.open.set()
    with pytest.raises(CancelledError):
        job.result.result(TIMEOUT_S)
    assert error(result(below.ask(Settings(1))), below.expected(Settings(1))) < 1e-5
    assert gate.num_later == (2 if part == "transformer" else 1)
    below.engine.close()


def offloaded(kind: str, pipeline: Any) -> None:
    offload(pipeline, Parts.find(pipeline), kind, OTHER_CPU)


@pytest.mark.parametrize("compiles", [torch.nn.Module.compile, compile_forward])
def test_compiled_modules_have_no_checkpoints(compiles: Callable[[torch.nn.Module], None]) -> None:
    below = Served("flux")
    below.engine.close()
    transformer = below.pipeline.transformer
    everything = set(modules_below(transformer))
    block = transformer.transformer_blocks[0]
    compiles(block)
    assert everything - set(modules_below(transformer)) == set(block.modules())


def test_on_cuda_modules_without_parts_have_no_checkpoints() -> None:
    part = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Linear(2, 2))
    counts = {}
    for kind in ("cpu", "cuda"):
        checkpoints = Checkpoints([part], torch.device(kind))
        part(torch.zeros(1, 2))
        counts[kind] = checkpoints.num_passed
        checkpoints.close()
    assert counts == {"cpu": 3, "cuda": 1}


def test_a_closed_engine_leaves_no_checkpoints() -> None:
    below = Served("flux")
    below.engine.close()
    assert not any(module._forward_pre_hooks for module in below.pipeline.transformer.modules())
