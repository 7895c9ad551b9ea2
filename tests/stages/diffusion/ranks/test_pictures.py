"""Pictures of denoisers on two processes are those of one pipeline alone."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.denoising.spread import TOGETHER, Spread, check_pictures, spread_over_ranks
from support.tiny_pipelines import TIMEOUT_S, Settings, error, result

from omnistage.stages.diffusion.ranks.peers import RankError

pytestmark = pytest.mark.engine

ALONE_S = 8.0
SHORT_S = 0.2
ALONE = {
    0: "a call failed, but not on rank 1, which now waits for ever",
    1: "rank 1 has died (exit code 71): RuntimeError: as it was told",
}


@pytest.mark.parametrize(
    ("name", "way", "failing"),
    [
        ("flux", "tensor", 0),
        ("qwen-image", "ulysses", 1),
        pytest.param("qwen-image", "tensor", 1, marks=pytest.mark.repeat),
    ],
)
async def test_pictures_over_two_ranks_are_those_of_one_and_a_rank_that_fails_alone_ends_them(
    name: str, way: str, failing: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with spread_over_ranks(name, tmp_path_factory, ALONE_S, parallel={way: 2}) as spread:
        check_pictures(spread)
        weights = await spread.rpc("num_weights", from_all=True)
        whole = sum(one.numel() for one in spread.bare.transformer.parameters())
        assert all(one < 0.8 * whole if way == "tensor" else one == whole for one in weights)
        refused = {one for one, why in spread.control.commands.items() if "sharded" in why}
        changing = {"sleep", "wake", "load_weights", "add_lora", "remove_lora"}
        assert changing <= refused if way == "tensor" else not refused
        await spread.rpc("fail_next_call_on", failing)
        job = spread.ask(TOGETHER[0])
        assert spread.failures.get(timeout=TIMEOUT_S).startswith(ALONE[failing])
        with pytest.raises(RuntimeError):
            job.result.result(TIMEOUT_S)


# Groups of one rank each


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    with spread_over_ranks("qwen-image", tmp_path_factory, SHORT_S, guidance_ranks=2) as spread:
        yield spread


def test_guidance_on_two_ranks(guided: Spread) -> None:
    check_pictures(guided)
    before = guided.engine.num_foreseen
    settings = Settings(1, 6, 3.0)
    assert error(result(guided.ask(settings)), guided.expected(settings)) < 1e-5
    assert guided.engine.num_foreseen == before + 5


async def test_a_call_that_fails_in_another_group_long_before_ours_ends_is_tried_alone(
    guided: Spread,
) -> None:
    def wait(module: Any, args: Any) -> None:
        time.sleep(3 * SHORT_S)

    await guided.rpc("fail_next_call_on", 1)
    transformer = guided.ranks.denoisers["transformer"]
    before = guided.engine.num_foreseen
    settings = Settings(1, 2, 3.0)
    with next(transformer.children()).register_forward_pre_hook(wait):
        # each of the two calls is then tried alone, which needs no other rank
        assert error(result(guided.ask(settings)), guided.expected(settings)) < 1e-5
    assert guided.engine.num_foreseen == before + 1
    assert guided.failures.empty()  # the ranks of other groups do not wait for it


def test_a_result_that_there_is_no_room_for_ends_the_stage(
    guided: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of these ranks: one of them sends what nobody takes."""

    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("omnistage.stages.diffusion.ranks.lockstep.room_for", full)
    job = guided.engine.between_steps(lambda: guided.ranks.rpc("one", from_all=True))
    with pytest.raises(RankError, match="there is no room for a result of rank 1: full"):
        job.result(TIMEOUT_S)
    assert guided.failures.get_nowait() == "there is no room for a result of rank 1: full"
    guided.ranks.peers.processes[1].kill()  # as the stage's end does
