"""What an engine is told for each command, and what of it is asleep then."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm.control import EngineControl
from omnistage.stages.worker.failure import RequestError


class FakeEngine:
    """Notes what it is told."""

    def __init__(self, can_sleep: bool = True, profiler: str | None = "torch") -> None:
        self.told: list[Any] = []
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_sleep_mode=can_sleep),
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


def made(engine: FakeEngine) -> EngineControl:
    return EngineControl(engine)


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


async def test_profiles_have_a_prefix_and_a_folder() -> None:
    engine = FakeEngine()
    control = made(engine)
    assert await control.obey("start_profile", {"prefix": "a"}) == {"folder": "/traces"}
    assert await control.obey("stop_profile", {}) == {"folder": "/traces"}
    assert engine.told == [("start", "a"), "stop"]


def test_what_is_not_configured_says_what_it_needs() -> None:
    commands = made(FakeEngine(can_sleep=False, profiler=None)).commands
    assert commands["sleep"] == commands["wake"] == "its engine has no enable_sleep_mode: true"
    assert commands["start_profile"] == "its engine has no profiler_config"
    able = made(FakeEngine()).commands
    assert {name for name, reason in able.items() if reason} == {"load_weights"}
