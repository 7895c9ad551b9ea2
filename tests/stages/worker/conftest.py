"""Fixtures of the tests of this folder."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.stages.worker_gateway import ALONE, COMMAND_S, Gateway
from support.waiting import until

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stages.messages.to_gateway import (
    ABOUT_ITSELF,
    Ready,
)
from omnistage.stages.messages.to_stage import (
    Stop,
)
from omnistage.stages.worker.stage_worker import StageWorker


@pytest.fixture
def stage_class() -> str:
    return "ScriptedStage"


@pytest.fixture
def graph() -> dict[str, Any]:
    return ALONE


@pytest.fixture
async def gateway(
    stage_class: str,
    graph: dict[str, Any],
    run_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Gateway]:
    monkeypatch.setattr("omnistage.stages.worker.signs.INTERVAL_S", 0.01)
    monkeypatch.setattr("omnistage.stages.worker.stage_worker.visible_gpus", list)
    carried = payloads(Payload.TEXT)
    kind = Kind(
        f"support.stages.worker_stage:{stage_class}",
        frozenset({"text"}),
        feeds_itself=stage_class == "StageThatFeedsItself",
        makes=carried,
        takes=(carried,),
    )
    monkeypatch.setitem(KINDS, "vllm.text", kind)
    directory = run_directory / "worker"
    directory.mkdir(exist_ok=True)
    parsed = StageGraph.model_validate({**graph, "deadlines": {"command_s": COMMAND_S}})
    gateway = Gateway(directory)
    worker = StageWorker(parsed, "one", directory)
    running = asyncio.create_task(worker.run())
    await until(lambda: any(isinstance(chunk.message, Ready) for chunk in gateway.of(ABOUT_ITSELF)))
    yield gateway
    gateway.send(ABOUT_ITSELF, Stop())
    await asyncio.wait_for(running, 600)
    gateway.close()
    for file in directory.iterdir():
        file.unlink()
