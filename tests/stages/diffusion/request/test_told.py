"""Steps, previews and pictures for a client that does not read."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from support.stages.stage_outputs import ports_over
from support.waiting import until

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.request.told import Told
from omnistage.stages.diffusion.stage import DiffusionStage
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_gateway import TO_GATEWAY, ImagePixels, Step, ToGateway
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened, StagePorts

WINDOW = 8
PICTURE = np.zeros((4, 4, 3), np.uint8)
SMALL = {"height": 32, "width": 32, "num_frames": 5}


class Gateway:
    """A stage's ports, and the end that reads them only when it is told to."""

    def __init__(self, directory: Path, model: Path) -> None:
        connector = make_connector("shm", directory, {})
        connector.create("dit.gateway")
        self.sender = connector.sender("dit.gateway")
        self.receiver = connector.receiver("dit.gateway", TO_GATEWAY)
        self.ports: StagePorts = ports_over(model, self.sender, **SMALL)
        asyncio.get_running_loop().add_reader(self.sender.fileno(), self.ports.room.flush)

    def receive(self) -> list[Chunk[ToGateway]]:
        """What has come; nothing is granted."""
        return list(iter(self.receiver.receive, None))

    async def read(self, request_id: str) -> list[Chunk[ToGateway]]:
        """All of a request to its end, granted as it comes."""
        found: list[Chunk[ToGateway]] = []
        while not (found and found[-1].last):
            new = [chunk for chunk in self.receive() if chunk.request_id == request_id]
            self.receiver.grant(request_id, len(new))
            found += new
            await asyncio.sleep(0.001)
        return found

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.sender.fileno())
        self.sender.close()
        self.receiver.close()


def steps_of(chunks: Iterable[Chunk[ToGateway]]) -> list[int | str]:
    """The numbers of steps, and previews between them."""
    told = (chunk.message for chunk in chunks)
    return [message.step if isinstance(message, Step) else "preview" for message in told]


def indices_of(chunks: Iterable[Chunk[ToGateway]]) -> list[int]:
    """Of pictures or frames that are no previews."""
    told = (chunk.message for chunk in chunks)
    pictures = (message for message in told if isinstance(message, ImagePixels))
    return [picture.index for picture in pictures if not picture.is_preview]


def ask(stage: DiffusionStage, name: str, num_frames: int) -> "asyncio.Task[None]":
    """A request for a video."""
    sizes: dict[str, Any] = {**SMALL, "num_frames": num_frames}
    body = {"prompt": "a cat", **sizes, "num_inference_steps": 2, "guidance_scale": 1.0}
    return asyncio.create_task(stage.serve(Opened(name, Request(Draw(body), ["video"]))))


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    monkeypatch.setattr("omnistage.connectors.sender.MAX_BACKLOG_CHUNKS", 16)
    gateway = Gateway(tmp_path, tmp_path / "model")
    yield gateway
    gateway.close()


async def test_steps_that_nobody_reads_replace_each_other_and_previews_stay(
    gateway: Gateway,
) -> None:
    told = Told(gateway.ports, "a", "image")
    for step in range(1, 3001):
        told.step(step, 3000)
        if step in (1000, 2000):
            told.preview(PICTURE)
    assert told.num_waiting == 5
    other = Told(gateway.ports, "b", "image")
    other.step(1, 3000)
    finishing = asyncio.create_task(told.finish([PICTURE] * 40, 2))
    first = gateway.receive()
    assert steps_of(chunk for chunk in first if chunk.request_id == "a") == list(range(1, 9))
    assert steps_of(chunk for chunk in first if chunk.request_id == "b") == [1]
    await asyncio.sleep(0.05)
    assert gateway.receive() == []
    assert not finishing.done()
    gateway.receiver.grant("a", WINDOW)
    rest = await gateway.read("a")
    assert steps_of(rest[:5]) == [1000, "preview", 2000, "preview", 3000]
    assert indices_of(rest) == list(range(40))
    await finishing
    told.close()
    other.close()


async def test_a_cancelled_request_tells_nothing_more(gateway: Gateway) -> None:
    told = Told(gateway.ports, "a", "image")
    for step in range(20):
        told.step(step, 20)
    await asyncio.sleep(0)
    assert gateway.ports.room.num_waiting == 1
    told.close()
    await until(lambda: gateway.ports.room.num_waiting == 0)
    told.step(20, 20)
    assert len(gateway.receive()) == WINDOW


async def test_a_long_video_that_nobody_reads_holds_its_own_request_only(
    gateway: Gateway, tmp_path: Path
) -> None:
    """Its frames are more than may wait in a backlog."""
    torch.set_num_threads(1)
    write_tiny("wan", tmp_path / "model")
    stage = DiffusionStage(gateway.ports)
    await stage.start()

    slow, cancelled = ask(stage, "slow", 29), ask(stage, "cancelled", 29)
    await until(lambda: gateway.ports.room.num_waiting == 2)
    await ask(stage, "quick", 1)
    assert not slow.done()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert gateway.ports.room.num_waiting == 1
    gateway.sender.forget("cancelled")
    frames = await asyncio.wait_for(gateway.read("slow"), 600)
    await slow
    assert indices_of(frames) == list(range(29))
    await stage.close()


class HeldKeys:
    """In place of what a stage upstream gives: memory that requests hold."""

    def __init__(self) -> None:
        self.released: list[str] = []

    async def all_of(self, *_: object) -> "HeldKeys":
        return self

    def arguments(self, *_: object) -> dict[str, object]:
        return {}

    def release(self, request_id: str) -> None:
        self.released.append(request_id)

    def close(self) -> None:
        pass


async def test_a_video_that_nobody_reads_holds_no_memory_of_keys(
    gateway: Gateway, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    write_tiny("wan", tmp_path / "model")
    stage, keys = DiffusionStage(gateway.ports), HeldKeys()
    await stage.start()
    vars(stage)["_upstream"] = keys

    slow = ask(stage, "slow", 29)
    await until(lambda: slow.done() or bool(keys.released))
    assert not slow.done()
    await gateway.read("slow")
    await slow
    assert keys.released == ["slow"]
    await stage.close()


async def test_the_last_step_is_told_again_while_others_are_served_first(gateway: Gateway) -> None:
    gateway.ports.deadlines = Deadlines(next_chunk_s=8)
    told = Told(gateway.ports, "a", "image")
    assert not told.is_quiet
    told.wait()
    assert gateway.receive() == []  # it has not begun, which is another deadline
    told.step(1, 3)
    told.wait()
    assert steps_of(gateway.receive()) == [1]
    await until(lambda: told.is_quiet)
    told.wait()
    told.wait()
    assert steps_of(gateway.receive()) == [1]
    told.step(2, 3)
    assert steps_of(gateway.receive()) == [2]
    told.close()


async def test_a_request_whose_decoder_waits_for_anothers_is_not_silent(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    decode, begun, may_end = AutoencoderKLWan.decode, threading.Event(), threading.Event()

    @wraps(decode)
    def decode_late(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        assert may_end.wait(600)
        return decode(*args, **kwargs)

    monkeypatch.setattr(AutoencoderKLWan, "decode", decode_late)
    write_tiny("wan", tmp_path / "model")
    gateway.ports.deadlines = Deadlines(next_chunk_s=0.4)
    stage = DiffusionStage(gateway.ports)
    may_end.set()  # for the warm-up
    await stage.start()
    may_end.clear()
    begun.clear()

    first = ask(stage, "first", 5)
    await until(begun.is_set)
    second = ask(stage, "second", 1)
    chunks: list[Chunk[ToGateway]] = []

    def told() -> list[int | str]:
        chunks.extend(gateway.receive())
        return steps_of(one for one in chunks if one.request_id == "second")

    await until(lambda: told()[-1:] == [2])
    await asyncio.sleep(gateway.ports.deadlines.next_chunk_s / 4)  # twice what is quiet
    may_end.set()
    await asyncio.gather(first, second)
    *steps, picture = told()
    assert (set(steps), picture) == ({1, 2}, "preview")
    assert steps == sorted(steps)
    assert steps.count(2) > 1  # the last one is told again as it waits
    await stage.close()
