"""Pictures of denoisers on two processes are those of one pipeline alone."""

import pytest
from support.spread import TOGETHER, check_pictures, spread_over_ranks
from support.tiny_pipelines import TIMEOUT_S, Settings, error, result

pytestmark = pytest.mark.engine

ALONE_S = 8.0
ALONE = {0: "a call failed, but not on rank 1, which now waits for ever", 1: "rank 1 has died"}


@pytest.mark.parametrize(
    ("name", "way", "failing"),
    [("flux", "tensor", 0), ("qwen-image", "ulysses", 1), ("qwen-image", "tensor", 1)],
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


async def test_guidance_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> None:
    with spread_over_ranks("qwen-image", tmp_path_factory, guidance_ranks=2) as spread:
        check_pictures(spread)
        before = spread.engine.num_foreseen
        settings = Settings(1, 6, 3.0)
        assert error(result(spread.ask(settings)), spread.expected(settings)) < 1e-5
        assert spread.engine.num_foreseen == before + 5
        await spread.rpc("fail_next_call_on", 1)
        # each of the two calls is then tried alone, which needs no other rank
        assert error(result(spread.ask(settings)), spread.expected(settings)) < 1e-5
        assert spread.failures.empty()  # the ranks of other groups do not wait for it
