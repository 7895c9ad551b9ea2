"""The diffusion stage waits for its engine, and serves requests with it."""

import asyncio
import gc
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
import torch
from support.stages.stage_outputs import Outputs, ports_over

from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.engine.job import awaited
from omnistage.stages.diffusion.stage import DiffusionStage
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_gateway import Step
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened


async def test_the_end_of_a_cancelled_request_is_no_error_in_the_log() -> None:
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    result: Future[None] = Future()
    waiting = asyncio.create_task(awaited(result))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    result.set_exception(CancelledError())
    await asyncio.sleep(0.01)
    del result, waiting  # with the future that was made of it
    gc.collect()
    assert complaints == []


async def test_a_pipeline_with_steps_of_its_own_is_warmed_up_and_served(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_tiny("qwen-image", tmp_path)
    outputs = Outputs()
    sender: Any = outputs
    ports = ports_over(tmp_path, sender, height=32, width=32)
    ports.engine["pipeline_class"] = "support.models.silent_pipelines.TwoStepsPipeline"
    stage = DiffusionStage(ports)
    await stage.start()
    body = {"prompt": "a cat", "height": 32, "width": 32}
    await stage.serve(Opened("a", Request(Draw(body), ["image"], seed=1)))
    steps = [one.message for one in outputs.chunks["a"] if isinstance(one.message, Step)]
    assert [one.num_steps for one in steps] == [2, 2]
    assert len(outputs.pixels("a")) == 1
    request = Request(Draw({**body, "num_inference_steps": 3}), ["image"], seed=1)
    with pytest.raises(RequestError, match="this pipeline takes no num_inference_steps"):
        await stage.serve(Opened("b", request))
    await stage.close()
