"""Pictures whose VAE decodes in tiles on two ranks are those of one pipeline with tiles."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.denoising.spread import Spread, spread_over_ranks
from support.tiny_pipelines import TIMEOUT_S, Settings, error, made, quiet, result

from omnistage.stages.diffusion.checkpoint import make_tiny, write_tiny
from omnistage.stages.diffusion.ranks.peers import RankError

pytestmark = pytest.mark.engine

ODD = Settings(0, 2, height=56, width=24)  # three tiles
EVEN = Settings(1, 2, height=48, width=40)  # four
SMALL = Settings(2, 2)  # none


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    ways = {"ulysses": 2, "vae": 2}
    with spread_over_ranks("flux", tmp_path_factory, parallel=ways) as spread:
        spread.bare.vae.enable_tiling()
        yield spread


async def tiles(flux: Spread) -> list[int]:
    """How many each rank has decoded."""
    counted: list[int] = await flux.rpc("count_tiles", from_all=True)
    return counted


@pytest.mark.parametrize(
    ("settings", "shares"),
    [(ODD, (2, 1)), (EVEN, (2, 2)), (SMALL, (1, 0))],
    ids=["odd", "even", "none"],
)
async def test_the_ranks_take_turns_at_the_tiles(
    flux: Spread, settings: Settings, shares: tuple[int, int]
) -> None:
    expected = flux.expected(settings)
    before = await tiles(flux)
    assert error(result(flux.ask(settings)), expected) < 1e-5
    after = await tiles(flux)
    assert tuple(now - then for now, then in zip(after, before, strict=True)) == shares


async def test_pictures_of_several_requests(flux: Spread) -> None:
    asked = [EVEN, ODD, EVEN, SMALL]
    expected = [flux.expected(one) for one in asked]
    jobs = [flux.ask(one) for one in asked]
    for job, pictures in zip(jobs, expected, strict=True):
        assert error(result(job), pictures) < 1e-5


@pytest.mark.parametrize(("rank", "kind"), [(0, RuntimeError), (1, RankError)])
async def test_a_tile_that_fails_on_one_rank_fails_its_request_alone(
    flux: Spread, rank: int, kind: type[Exception]
) -> None:
    await flux.rpc("fail_next_tile_on", rank)
    with pytest.raises(kind, match="as it was told") as failure:
        result(flux.ask(ODD))
    assert type(failure.value) is kind
    assert error(result(flux.ask(EVEN)), flux.expected(EVEN)) < 1e-5
    assert flux.failures.empty()


async def test_the_vae_sleeps_on_all_ranks_and_wakes(flux: Spread) -> None:
    whole = sum(one.numel() for one in flux.bare.vae.parameters())
    await flux.obey("sleep", level=2, tags=["vae"])
    assert await flux.rpc("num_vae_weights", from_all=True) == [0, 0]
    assert await flux.obey("wake", tags=["vae"]) == {"asleep": []}
    assert await flux.rpc("num_vae_weights", from_all=True) == [whole, whole]
    assert error(result(flux.ask(EVEN)), flux.expected(EVEN)) < 1e-5


async def test_all_ranks_decode_with_other_weights(flux: Spread, tmp_path: Path) -> None:
    write_tiny("flux", tmp_path / "own")
    write_tiny("flux", tmp_path / "other", seed=7)
    other = quiet(make_tiny("flux", 7))
    other.vae.enable_tiling()
    with torch.inference_mode():
        expected = made(other(**EVEN.arguments("flux")))
    for path in (str(tmp_path / "other"), None):  # without one the last again
        await flux.obey("load_weights", path=path)
        assert error(result(flux.ask(EVEN)), expected) < 1e-5
    await flux.obey("load_weights", path=str(tmp_path / "own"))
    assert error(result(flux.ask(EVEN)), flux.expected(EVEN)) < 1e-5


async def test_a_rank_that_dies_in_a_tile_is_known_at_once(flux: Spread) -> None:
    """The last test of these ranks."""
    await flux.rpc("die_in_next_tile_on", 1)
    job = flux.ask(EVEN)
    assert flux.failures.get(timeout=TIMEOUT_S) == "rank 1 has died (exit code 3)"
    with pytest.raises(RankError, match="rank 1 has died"):
        job.result.result(TIMEOUT_S)
