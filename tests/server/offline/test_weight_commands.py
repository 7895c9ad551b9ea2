"""Weights, adapters and replicas that a program gives its stages."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.gateway.offline import ObedientStages, engine_of, fake_async_omni, fake_omni
from support.gateway.offline_commands import STAGES, WEIGHTS, unread
from support.gateway.serving import IMAGES, OMNI
from support.waiting import until

from omnistage import Adapter, BadRequest, Omni
from omnistage.stages.messages.to_gateway import CommandResult, Failed


class Reading:
    """Stages that read the folder which they are to load."""

    def __init__(self, obedient: ObedientStages, answer: CommandResult | None = None) -> None:
        self.folders: list[Path] = []
        self.read: list[dict[str, torch.Tensor]] = []
        self.files: list[set[str]] = []
        self._answer = answer or CommandResult({"asleep": []})
        obedient.graph.obey = self._obey

    def _obey(self, stage: str, command: str, arguments: Mapping[str, Any]) -> CommandResult:
        assert command == "load_weights"
        folder = Path(arguments["path"])
        self.folders.append(folder)
        self.files.append({path.name for path in folder.iterdir()})
        (file,) = folder.glob("*.safetensors")
        self.read.append(load_file(file))
        return self._answer


def shared_folders(omni: Omni) -> list[Path]:
    return list(engine_of(omni).directory.glob("omnistage-weights-*"))


def test_names_and_tensors_come_as_a_folder_that_is_gone_afterwards(
    commanded: Omni, obedient: ObedientStages
) -> None:
    reading = Reading(obedient)
    assert commanded.load_weights(iter(WEIGHTS.items()), ["thinker"]) == {"thinker": ()}
    (read,) = reading.read
    assert read.keys() == WEIGHTS.keys()
    assert all(torch.equal(read[name], WEIGHTS[name]) for name in WEIGHTS)
    assert "config.json" in reading.files[0]
    assert reading.folders[0].parent == engine_of(commanded).directory
    assert not reading.folders[0].exists()


def test_the_folder_is_gone_when_a_stage_refuses_the_weights(
    commanded: Omni, obedient: ObedientStages
) -> None:
    failed = Failed(400, "does not fit", "invalid_request_error", "thinker", "path")
    reading = Reading(obedient, CommandResult(error=failed))
    with pytest.raises(BadRequest, match="does not fit"):
        commanded.load_weights(WEIGHTS.items())
    assert len(reading.folders) == len(STAGES)
    assert not reading.folders[0].exists()


def test_weights_that_fail_on_the_way_reach_no_stage(
    commanded: Omni, obedient: ObedientStages
) -> None:
    def failing() -> Iterator[tuple[str, torch.Tensor]]:
        yield next(iter(WEIGHTS.items()))
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        commanded.load_weights(failing())
    assert not obedient.told
    assert not shared_folders(commanded)


def test_names_and_tensors_want_a_model_with_a_config(
    commanded: Omni, obedient: ObedientStages, model: Path
) -> None:
    (model / "config.json").unlink()
    with pytest.raises(BadRequest, match=r"a config\.json") as raised:
        commanded.load_weights(unread())
    assert raised.value.param == "weights"
    assert not obedient.told


def test_names_and_tensors_of_a_pipeline_come_with_nothing_else(
    obedient: ObedientStages, model: Path
) -> None:
    (model / "config.json").rename(model / "model_index.json")
    with fake_omni(obedient, {**IMAGES, "model": str(model)}) as omni:
        reading = Reading(obedient)
        assert omni.load_weights(WEIGHTS.items()) == {"dit": ()}
    (read,) = reading.read
    assert read.keys() == WEIGHTS.keys()
    assert {name for name in reading.files[0] if not name.endswith(".safetensors")} == {
        "model.safetensors.index.json"
    }


def test_names_and_tensors_are_of_one_model(
    obedient: ObedientStages, model: Path, tmp_path: Path
) -> None:
    other = {"kind": "qwen3_omni.code2wav", "model": str(tmp_path / "other")}
    graph: dict[str, Any] = {**OMNI, "model": str(model)}
    graph["stages"] = {**graph["stages"], "code2wav": other}
    with fake_omni(obedient, graph) as omni:
        with pytest.raises(BadRequest, match="models of their own") as raised:
            omni.load_weights(unread())
        assert raised.value.param == "stages"
        reading = Reading(obedient)
        omni.load_weights(WEIGHTS.items(), ["thinker", "talker"])
        assert len(reading.folders) == 2


async def test_a_load_that_is_cancelled_leaves_no_folder(
    obedient: ObedientStages, model: Path
) -> None:
    begun, going_on = threading.Event(), threading.Event()
    num_read = 0

    def slow() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal num_read
        for number in range(100):
            num_read += 1
            begun.set()
            yield f"layer.{number}", torch.ones(1)
            going_on.wait(600)

    async with fake_async_omni(obedient, {**OMNI, "model": str(model)}) as omni:
        loading = asyncio.create_task(omni.load_weights(slow()))
        await until(begun.is_set)
        loading.cancel()
        await asyncio.sleep(0)
        going_on.set()
        await asyncio.wait({loading}, timeout=600)
        assert loading.cancelled()
        assert num_read < 100
        assert not list(omni._engine.directory.glob("omnistage-weights-*"))
        assert not obedient.told


def test_an_adapter_that_is_added_is_a_model_until_it_is_removed(
    commanded: Omni, obedient: ObedientStages
) -> None:
    with pytest.raises(BadRequest) as raised:
        commanded.chat("words", model="ink")
    assert raised.value.code == "model_not_found"
    ink = Adapter("ink", "/loras/ink", rank=8)
    assert commanded.add_lora("ink", "/loras/ink", stages=["thinker"]) == {"thinker": (ink,)}
    assert commanded.loras() == {"thinker": (ink,), "talker": (), "code2wav": ()}
    commanded.chat("words", model="ink")
    assert obedient.graph.stages["thinker"].last_body["model"] == "ink"
    pinned = Adapter("ink", "/loras/ink", pinned=True, rank=8)
    assert commanded.pin_lora("ink", stages=["thinker"]) == {"thinker": (pinned,)}
    assert commanded.pin_lora("ink", False, ["thinker"]) == {"thinker": (ink,)}
    assert commanded.remove_lora("ink", ["thinker"]) == {"thinker": ()}
    with pytest.raises(BadRequest):
        commanded.chat("words", model="ink")


def test_replicas_come_and_go_and_answer(obedient: ObedientStages, model: Path) -> None:
    kinds: Any = OMNI["stages"]
    talker = {**kinds["talker"], "replicas": 1, "max_replicas": 2}
    graph = {**OMNI, "model": str(model), "stages": {**kinds, "talker": talker}}
    with fake_omni(obedient, graph) as omni:
        assert omni.scale("talker", 2) == ("talker@0", "talker@1")
        assert list(omni.sleep(stages=["talker"])) == ["talker@0", "talker@1"]
        assert list(omni.wake(stages=["talker"])) == ["talker@0", "talker@1"]
        assert omni.scale("talker", 1) == ("talker@0",)
        assert omni.chat("words").text == "Hello there"
        with pytest.raises(BadRequest) as raised:
            omni.scale("talker", 3)
        assert raised.value.param == "replicas"


async def test_commands_are_coroutines_too(obedient: ObedientStages, model: Path) -> None:
    async with fake_async_omni(obedient, {**OMNI, "model": str(model)}) as omni:
        assert await omni.sleep(stages=["thinker"]) == {"thinker": ("weights",)}
        assert omni.sleeping["thinker"] == ("weights",)
        assert await omni.wake(stages=["thinker"]) == {"thinker": ()}
        await omni.add_lora("ink", "/loras/ink", stages=["thinker"])
        await omni.pin_lora("ink", stages=["thinker"])
        assert (await omni.loras())["thinker"][0].pinned
        assert await omni.remove_lora("ink", ["thinker"]) == {"thinker": ()}
        assert await omni.load_weights(WEIGHTS.items(), ["thinker"]) == {"thinker": ()}
