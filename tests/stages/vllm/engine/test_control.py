"""What an engine is told for each command, and what of it is asleep then."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from omnistage.stages.vllm.engine.control import NO_SLEEP_ON_A_CPU, EngineControl
from omnistage.stages.vllm.engine.weights import EngineWeights
from omnistage.stages.vllm.workers.weights_worker import EXTENSION, LOAD, RPC, TOGETHER
from omnistage.stages.vllm.workers.worker_extension import extended_by
from omnistage.stages.worker.extension import MAX_RESULT_BYTES
from omnistage.stages.worker.failure import RequestError


class FakeEngine:
    """Notes what it is told."""

    def __init__(self, can_sleep: bool = True, profiler: str | None = "torch") -> None:
        self.told: list[Any] = []
        self.unreadable: set[str] = set()
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_sleep_mode=can_sleep),
            parallel_config=SimpleNamespace(worker_extension_cls=EXTENSION),
            kv_transfer_config=None,
            profiler_config=SimpleNamespace(profiler=profiler, torch_profiler_dir="/traces"),
        )

    async def sleep(self, level: int) -> None:
        self.told.append(("sleep", level))

    async def wake_up(self, tags: list[str]) -> None:
        self.told.append(("wake", *tags))

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        self.told.append(("start", profile_prefix))

    async def stop_profile(self) -> None:
        self.told.append("stop")

    async def collective_rpc(self, method: str, args: tuple[str, ...]) -> None:
        assert method == TOGETHER
        self.told.append(args)
        if args[1] in self.unreadable:
            raise RuntimeError("the file ends early")

    async def reset_prefix_cache(self) -> None:
        self.told.append("reset")


def made(engine: FakeEngine, weights: Any = "a reason") -> EngineControl:
    return EngineControl(engine, weights, stage="thinker@0")


def write_weights(folder: Path, **shapes: tuple[int, ...]) -> str:
    folder.mkdir()
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


@pytest.fixture
def own(tmp_path: Path) -> str:
    return write_weights(tmp_path / "own", head=(4, 2), norm=(2,))


@pytest.fixture
def engine(own: str) -> FakeEngine:
    engine = FakeEngine()
    engine.vllm_config.model_config.model = own
    return engine


def other_weights(engine: FakeEngine) -> EngineWeights:
    return EngineWeights(engine)


async def test_level_1_sleeps_and_wakes_by_tag() -> None:
    engine = FakeEngine()
    control = made(engine)
    asleep = await control.obey("sleep", {"level": 1, "tags": None})
    assert asleep == {"asleep": ["weights", "kv_cache"]}
    await control.obey("sleep", {"level": 1, "tags": None})
    assert await control.obey("wake", {"tags": ["weights"]}) == {"asleep": ["kv_cache"]}
    assert await control.obey("wake", {"tags": None}) == {"asleep": []}
    assert await control.obey("wake", {"tags": None}) == {"asleep": []}
    assert engine.told == [("sleep", 1), ("wake", "weights"), ("wake", "kv_cache")]


@pytest.mark.parametrize(
    ("command", "arguments", "param"),
    [
        ("sleep", {"level": 1, "tags": ["weights"]}, "tags"),
        ("wake", {"tags": ["vae"]}, "tags"),
        ("sleep", {"level": 2, "tags": None}, "level"),
    ],
)
async def test_what_vllm_cannot_is_named(
    command: str, arguments: dict[str, Any], param: str
) -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError) as caught:
        await made(engine).obey(command, arguments)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert not engine.told


class TracingEngine(FakeEngine):
    """Writes a trace when a profile ends, as vLLM's workers do."""

    def __init__(self, folder: Path, *, is_named: bool = True) -> None:
        super().__init__()
        self.folder = folder
        self.vllm_config.profiler_config.torch_profiler_dir = str(folder)
        self.is_named = is_named

    async def stop_profile(self) -> None:
        (_, prefix) = self.told[-1]
        self.folder.mkdir(exist_ok=True)
        name = f"{prefix}_rank0" if self.is_named else "instance-rank-0"
        (self.folder / f"{name}.{len(self.told)}.pt.trace.json.gz").touch()
        await super().stop_profile()


async def test_a_profile_has_a_folder_and_the_files_that_the_engine_wrote(tmp_path: Path) -> None:
    engine = TracingEngine(tmp_path / "traces")
    control = made(engine)
    mark = f"thinker.0-{os.getpid()}"
    folder = {"folder": str(engine.folder)}
    for number, prefix in enumerate(("a", "b", None)):
        assert await control.obey("start_profile", {"prefix": prefix}) == folder
        (engine.folder.parent / "traces").mkdir(exist_ok=True)
        (engine.folder / f"talker-{number}.1.pt.trace.json.gz").touch()  # beside it
        name = mark if prefix is None else f"{prefix}-{mark}"
        assert engine.told[-1] == ("start", name)
        file = engine.folder / f"{name}_rank0.{len(engine.told)}.pt.trace.json.gz"
        assert await control.obey("stop_profile", {}) == {**folder, "files": [str(file)]}


async def test_of_an_engine_that_names_no_trace_all_new_ones_are_meant(tmp_path: Path) -> None:
    engine = TracingEngine(tmp_path, is_named=False)
    control = made(engine)
    (tmp_path / "before.json.gz").touch()
    await control.obey("start_profile", {"prefix": None})
    file = tmp_path / "instance-rank-0.1.pt.trace.json.gz"
    stopped = await control.obey("stop_profile", {})
    assert stopped == {"folder": str(tmp_path), "files": [str(file)]}


async def test_a_second_profile_and_a_stop_without_one_are_refused() -> None:
    engine = FakeEngine()
    control = made(engine)
    for _ in range(2):
        with pytest.raises(RequestError, match="no profile runs; start one first") as caught:
            await control.obey("stop_profile", {})
        assert (caught.value.status, caught.value.code) == (409, "not_profiling")
        assert engine.told == []
        await control.obey("start_profile", {"prefix": None})
        with pytest.raises(RequestError, match="a profile runs already; stop it first") as caught:
            await control.obey("start_profile", {"prefix": None})
        assert (caught.value.status, caught.value.code) == (409, "profiling")
        assert len(engine.told) == 1
        await control.obey("stop_profile", {})
        engine.told.clear()


async def test_a_profile_that_failed_to_begin_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = made(engine := FakeEngine())

    async def start_profile(profile_prefix: str | None = None) -> None:
        raise RuntimeError("no CUPTI")

    with monkeypatch.context() as context:
        context.setattr(engine, "start_profile", start_profile)
        with pytest.raises(RuntimeError, match="no CUPTI"):
            await control.obey("start_profile", {"prefix": None})
    with pytest.raises(RequestError, match="no profile runs"):
        await control.obey("stop_profile", {})
    await control.obey("start_profile", {"prefix": None})


async def test_a_profiler_without_a_folder_names_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(profiler="cuda")
    engine.vllm_config.profiler_config.torch_profiler_dir = ""
    control = made(engine)
    monkeypatch.chdir(tmp_path)
    await control.obey("start_profile", {"prefix": None})
    (tmp_path / "of-somebody.json.gz").touch()
    assert await control.obey("stop_profile", {}) == {"folder": ""}


async def test_a_profiles_name_is_no_longer_than_vllm_takes() -> None:
    engine = FakeEngine()
    await made(engine).obey("start_profile", {"prefix": "p" * 128})
    name = engine.told[-1][1]
    assert len(name) == 128
    assert name.endswith(f"p-thinker.0-{os.getpid()}")


def test_what_is_not_configured_says_what_it_needs() -> None:
    commands = made(FakeEngine(can_sleep=False, profiler=None)).commands
    assert commands["sleep"] == commands["wake"] == NO_SLEEP_ON_A_CPU
    assert "enable_sleep_mode: true, which vLLM has for GPUs only" in NO_SLEEP_ON_A_CPU
    assert commands["start_profile"] == "its engine has no profiler_config"
    able = made(FakeEngine()).commands
    refused = {"load_weights": "a reason", "rpc": "its engine has no worker_extension_cls"}
    assert {name: reason for name, reason in able.items() if reason} == refused
    assert not {name for name, reason in able.items() if "lora" in name}


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
            worker_extension_cls=extended_by("support.worker_methods.Methods"),
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
