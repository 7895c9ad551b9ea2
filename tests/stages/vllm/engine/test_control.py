"""What an engine is told for each command, and what of it is asleep then."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.fakes.engine import FakeEngine, made

from omnistage.stages.vllm.engine.control import NO_SLEEP_ON_A_CPU
from omnistage.stages.worker.failure import RequestError


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
