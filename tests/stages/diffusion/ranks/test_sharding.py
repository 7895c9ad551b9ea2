"""Weights of a denoiser in parts: what each rank holds, and pictures as from whole weights."""

from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from support.denoising.spread import TOGETHER, Spread, check_pictures, spread_over_ranks
from support.models.loras import write_lora
from support.tiny_pipelines import TIMEOUT_S, Settings, error, made, quiet, result

from omnistage.stages.device.shared_weights import shared_weights
from omnistage.stages.diffusion.checkpoint import make_tiny, write_tiny
from omnistage.stages.diffusion.loading.other_weights import modules_of
from omnistage.stages.diffusion.ranks.peers import RankError
from omnistage.stages.worker.failure import RequestError

pytestmark = pytest.mark.engine

EXTENSION: dict[str, Any] = {"worker_extension_cls": "support.denoising.shard_extension.Sharded"}
OTHER_SEED = 7


@pytest.fixture(scope="module", autouse=True)
def _tracker() -> None:
    """What Python starts once for all processes of a program."""
    resource_tracker.ensure_running()


def tensors_of(pipeline: Any, *parts: str) -> Iterator[tuple[str, torch.Tensor]]:
    """All weights of some parts of a pipeline, as a program would give them."""
    for part, module in modules_of(pipeline).items():
        if part in parts:
            yield from ((f"{part}.{name}", one) for name, one in module.state_dict().items())


def expected_of(pipeline: Any, name: str, settings: Settings) -> torch.Tensor:
    with torch.inference_mode():
        return made(pipeline(**settings.arguments(name)))


# Before there is any other group: a process is in one


async def test_ranks_that_share_nothing_but_weights(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Wan's has weights with fewer rows than ranks, whose parts are padded or empty."""
    with spread_over_ranks("wan", tmp_path_factory, parallel={"shard": 2}, **EXTENSION) as wan:
        check_pictures(wan)
        whole = sum(one.nbytes for one in wan.bare.transformer.parameters())
        sizes = await wan.rpc("num_bytes", from_all=True)
        assert all(whole / 2 <= size < 0.53 * whole for size in sizes)
        weights = wan.ranks.denoisers["transformer"].parameters()
        assert not any(one.requires_grad for one in weights)  # FSDP would want one dtype of them
        other = quiet(make_tiny("wan", OTHER_SEED))
        with shared_weights(tensors_of(other, "transformer", "vae", "text_encoder"), None) as path:
            await wan.obey("load_weights", path=str(path))
        assert torch.equal(result(wan.ask(TOGETHER[0])), expected_of(other, "wan", TOGETHER[0]))


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    parallel = {"ulysses": 2, "shard": 2}
    with spread_over_ranks("flux", tmp_path_factory, parallel=parallel, **EXTENSION) as spread:
        yield spread


def num_bytes(flux: Spread) -> int:
    return sum(one.nbytes for one in flux.bare.transformer.parameters())


def check_picture(flux: Spread, settings: Settings = TOGETHER[0]) -> None:
    assert error(result(flux.ask(settings)), flux.expected(settings)) < 1e-5


async def test_each_rank_holds_half_of_the_weights_and_gathers_block_by_block(
    flux: Spread,
) -> None:
    await flux.rpc("watch_blocks", from_all=True)
    check_pictures(flux)
    assert await flux.rpc("num_bytes", from_all=True) == [num_bytes(flux) / 2] * 2
    assert await flux.rpc("most_blocks_at_once", from_all=True) == [1, 1]


async def test_adapters_on_weights_in_parts(flux: Spread, tmp_path: Path) -> None:
    settings = TOGETHER[1]
    file = write_lora(make_tiny("flux"), tmp_path / "ink", 1)
    inked = quiet(make_tiny("flux"))
    inked.load_lora_weights(file.parent, weight_name=file.name, adapter_name="ink")
    expected = expected_of(inked, "flux", settings)
    assert error(expected, flux.expected(settings)) > 1e-3
    await flux.obey("add_lora", name="ink", path=str(file), weight_name=None, pinned=False)
    assert error(result(flux.ask(settings, lora=[{"name": "ink"}])), expected) < 1e-5
    check_picture(flux, settings)
    await flux.obey("sleep", level=2, tags=None)
    await flux.obey("wake", tags=None)
    assert error(result(flux.ask(settings, lora=[{"name": "ink"}])), expected) < 1e-5
    await flux.obey("remove_lora", name="ink")
    check_picture(flux, settings)


@pytest.mark.parametrize("level", [1, 2])
async def test_parts_leave_their_device_on_all_ranks_and_come_back(
    flux: Spread, level: int
) -> None:
    asleep = await flux.obey("sleep", level=level, tags=["transformer"])
    assert asleep == {"asleep": ["transformer"]}
    assert await flux.rpc("num_bytes", from_all=True) == [0, 0]
    assert await flux.obey("wake", tags=None) == {"asleep": []}
    assert await flux.rpc("num_bytes", from_all=True) == [num_bytes(flux) / 2] * 2
    check_picture(flux)


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_other_weights_reach_all_parts_awake_or_asleep(
    flux: Spread, level: int, tmp_path: Path
) -> None:
    write_tiny("flux", tmp_path / "other", seed=OTHER_SEED)
    expected = expected_of(quiet(make_tiny("flux", OTHER_SEED)), "flux", TOGETHER[2])
    if level:
        await flux.obey("sleep", level=level, tags=None)
    await flux.obey("load_weights", path=str(tmp_path / "other"))
    await flux.obey("wake", tags=None)
    assert error(result(flux.ask(TOGETHER[2])), expected) < 1e-5
    await flux.obey("load_weights", path=str(flux.folder))
    check_picture(flux, TOGETHER[2])


async def test_weights_that_one_rank_cannot_read_are_on_none(flux: Spread, tmp_path: Path) -> None:
    other = make_tiny("flux", OTHER_SEED)
    await flux.rpc("refuse_on", 1, from_all=True)
    with shared_weights(tensors_of(other, "transformer"), None, str(tmp_path)) as path:
        with pytest.raises(RequestError, match="rank 1: OSError: no such folder here") as caught:
            await flux.obey("load_weights", path=str(path))
        assert (caught.value.status, caught.value.param) == (400, "path")
        check_picture(flux)
        await flux.rpc("refuse_on", -1, from_all=True)
        await flux.obey("load_weights", path=str(path))
    bare = quiet(make_tiny("flux"))
    bare.transformer = other.transformer
    assert error(result(flux.ask(TOGETHER[0])), expected_of(bare, "flux", TOGETHER[0])) < 1e-5
    await flux.obey("load_weights", path=str(flux.folder))
    check_picture(flux)
    assert flux.failures.empty()


async def test_a_call_that_fails_on_all_ranks_leaves_nothing_gathered(flux: Spread) -> None:
    def call() -> None:
        flux.ranks.run("transformer", [((), {"hidden_states": "no tensor"})])

    with pytest.raises(Exception, match="str") as failure:
        flux.engine.between_steps(call).result(TIMEOUT_S)
    assert not isinstance(failure.value, RankError)
    assert await flux.rpc("num_bytes", from_all=True) == [num_bytes(flux) / 2] * 2
    check_picture(flux)
    assert flux.failures.empty()


async def test_a_rank_that_fails_while_it_puts_weights_in_ends_the_stage(flux: Spread) -> None:
    """The last test of these ranks: they do not agree any more."""
    await flux.rpc("fail_on_exchange", 1, from_all=True)
    with pytest.raises(RankError, match="rank 1: OutOfMemoryError"):
        await flux.obey("load_weights", path=str(flux.folder))
    assert flux.failures.get(timeout=600).startswith("rank 1: OutOfMemoryError")
