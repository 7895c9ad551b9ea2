"""What an engine is told of weights, and of methods of its workers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.engine import FakeEngine, made, write_weights

from omnistage.stages.vllm.engine.weights import EngineWeights
from omnistage.stages.vllm.workers.weights_worker import LOAD, RPC
from omnistage.stages.vllm.workers.worker_extension import extended_by
from omnistage.stages.worker.extension import MAX_RESULT_BYTES
from omnistage.stages.worker.failure import RequestError


def other_weights(engine: FakeEngine) -> EngineWeights:
    return EngineWeights(engine)


async def test_level_2_reads_its_weights_again_when_they_wake(engine: FakeEngine, own: str) -> None:
    control = made(engine, other_weights(engine))
    await control.obey("sleep", {"level": 2, "tags": None})
    await control.obey("wake", {"tags": ["kv_cache"]})
    assert engine.told == [("sleep", 2), ("wake", "kv_cache")]
    await control.obey("wake", {"tags": ["weights"]})
    assert engine.told[2:] == [("wake", "weights"), (LOAD, own), "reset"]
    await control.obey("sleep", {"level": 1, "tags": None})
    await control.obey("wake", {"tags": None})
    assert engine.told[5:] == [("sleep", 1), ("wake", "weights", "kv_cache")]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("weights", "level 2 drops the weights: a reason"),
        ("bridge", "exchanges with other stages"),
        ("dummy", "no safetensors weights"),
    ],
)
async def test_level_2_is_refused_where_something_would_be_lost(
    spoil: str, said: str, engine: FakeEngine, tmp_path: Path
) -> None:
    if spoil == "dummy":
        engine.vllm_config.model_config.model = str(tmp_path)
    if spoil == "bridge":
        engine.vllm_config.kv_transfer_config = SimpleNamespace()
    weights = "a reason" if spoil == "weights" else other_weights(engine)
    with pytest.raises(RequestError, match=said) as caught:
        await made(engine, weights).obey("sleep", {"level": 2, "tags": None})
    assert caught.value.param == "level"
    assert not engine.told


async def test_other_weights_are_those_that_come_again(engine: FakeEngine, tmp_path: Path) -> None:
    control = made(engine, other_weights(engine))
    other = write_weights(tmp_path / "other", head=(4, 2), norm=(2,), more=(1,))
    await control.obey("load_weights", {"path": other})
    await control.obey("load_weights", {"path": None})
    assert engine.told == [(LOAD, other), "reset"] * 2


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (None, "is no folder"),
        ({}, "no safetensors weights for this stage"),
        ({"head": (4, 2)}, "it has no norm"),
        ({"head": (2, 4), "norm": (2,)}, r"head is \(2, 4\), not \(4, 2\)"),
    ],
)
async def test_weights_that_do_not_fit_never_reach_the_engine(
    shapes: dict[str, tuple[int, ...]] | None, said: str, engine: FakeEngine, tmp_path: Path
) -> None:
    path = str(tmp_path / "none") if shapes is None else write_weights(tmp_path / "o", **shapes)
    with pytest.raises(RequestError, match=said) as caught:
        await made(engine, other_weights(engine)).obey("load_weights", {"path": path})
    assert (caught.value.status, caught.value.param) == (400, "path")
    assert not engine.told


async def test_weights_that_cannot_be_read_to_their_end_give_way_to_those_before(
    engine: FakeEngine, own: str, tmp_path: Path
) -> None:
    other = write_weights(tmp_path / "other", head=(4, 2), norm=(2,))
    engine.unreadable.add(other)
    with pytest.raises(RequestError, match="the file ends early"):
        await made(engine, other_weights(engine)).obey("load_weights", {"path": other})
    assert engine.told == [(LOAD, other), (LOAD, own), "reset"]


async def test_nothing_is_loaded_into_an_engine_that_sleeps(engine: FakeEngine, own: str) -> None:
    control = made(engine, other_weights(engine))
    await control.obey("sleep", {"level": 1, "tags": None})
    with pytest.raises(RequestError) as caught:
        await control.obey("load_weights", {"path": own})
    assert (caught.value.status, caught.value.code) == (409, "sleeping")
    await control.obey("wake", {"tags": ["weights"]})
    assert await control.obey("load_weights", {"path": own}) == {"asleep": ["kv_cache"]}


class Called(FakeEngine):
    """Its ranks answer a call of a user's method, or the executor has an error of another lane."""

    def __init__(self, *answers: str, error: str = "", num_lanes: int = 1) -> None:
        super().__init__()
        self.answers, self.error = answers, error
        self.vllm_config.parallel_config = SimpleNamespace(
            worker_extension_cls=extended_by("support.stages.worker_methods.Methods"),
            data_parallel_size=num_lanes,
        )

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> Any:
        assert method == RPC
        self.told.append(args)
        if self.error:
            raise Exception(self.error)  # as vLLM's client does
        return list(self.answers)


async def called(engine: FakeEngine, method: str = "process", *args: Any, **more: Any) -> Any:
    asked = {"method": method, "args": list(args), "reply": True, "from_all": False, **more}
    return (await made(engine).obey("rpc", asked))["result"]


def test_with_an_extension_its_methods_may_be_called_and_weights_be_loaded(own: str) -> None:
    engine = Called()
    engine.vllm_config.model_config.model = own
    commands = made(engine, other_weights(engine)).commands
    assert (commands["rpc"], commands["load_weights"]) == ("", "")


async def test_a_call_has_the_result_of_rank_0_or_of_all_or_none() -> None:
    engine = Called('{"result":[1]}', '{"result":2}')
    assert await called(engine) == [1]
    assert await called(engine, from_all=True) == [[1], 2]
    assert await called(engine, reply=False) is None
    assert await called(engine, "doubled", 4) == [1]
    assert engine.told == [("process", [])] * 3 + [("doubled", [4])]


@pytest.mark.parametrize(
    "engine",
    [
        Called('{"problem":"rank 1: KeyError: 3"}', '{"problem":"rank 1: KeyError: 3"}'),
        Called('{"result":1}', error="lane 1, rank 1: KeyError: 3", num_lanes=2),
    ],
    ids=["own lane", "another lane"],
)
async def test_what_a_method_raises_on_any_rank_is_the_answer(engine: FakeEngine) -> None:
    for reply in (True, False):
        with pytest.raises(RequestError, match="rank 1: KeyError: 3") as caught:
            await called(engine, reply=reply)
        assert (caught.value.status, caught.value.code) == (500, "rpc_failed")


async def test_results_of_all_ranks_are_refused_where_vllm_answers_for_the_first_lane() -> None:
    engine = Called('{"result":1}', num_lanes=2)
    assert await called(engine) == 1
    with pytest.raises(RequestError) as caught:
        await called(engine, from_all=True)
    assert (caught.value.status, caught.value.param) == (400, "from_all")
    assert len(engine.told) == 1


async def test_results_of_all_ranks_are_together_no_longer_than_a_channel_takes() -> None:
    one = f'{{"result":"{"x" * (MAX_RESULT_BYTES // 2)}"}}'
    with pytest.raises(RequestError, match="bytes of JSON") as caught:
        await called(Called(one, one), from_all=True)
    assert caught.value.code == "rpc_failed"
