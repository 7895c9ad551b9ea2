"""The stage of a streaming decoder that is no family's, over real channels."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models.toy_decoders import GUILTY, RunningSum, codes_of
from support.stages.decoder_stage import StageHarness
from support.waiting import until

from omnistage.stages.device.profiler import NO_FOLDER, PROFILE
from omnistage.stages.messages.to_gateway import Sound
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.stage import DecoderStage
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import StagePorts

WINDOW = 8  # outputs that may wait unread


class SumStage(DecoderStage):
    """A family's stage: it says which engine."""

    def load(self, ports: StagePorts) -> DecoderEngine[Slot]:
        self.decoder = RunningSum(4)
        return DecoderEngine(self.decoder)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[StageHarness]:
    harness = StageHarness(tmp_path, SumStage)
    ready = await harness.start()
    assert (ready.sample_rate_hz, ready.num_channels) == (8000, 2)
    yield harness
    await harness.close()
    stage = harness.stage
    assert isinstance(stage, SumStage)
    assert stage._engine.num_streams == 0
    assert stage._engine.step() == []
    assert stage.decoder.num_free == 4


def decoder_of(harness: StageHarness) -> RunningSum:
    assert isinstance(harness.stage, SumStage)
    return harness.stage.decoder


async def test_its_samples_are_the_whole_answer_s_and_stereo(harness: StageHarness) -> None:
    frames = {f"r{seed}": codes_of(6, seed) for seed in range(6)}
    await harness.open(*frames)
    for start, end in ((0, 1), (1, 3), (3, 6)):
        for name, own in frames.items():
            harness.send(name, own[start:end], last=end == 6)
    await asyncio.gather(*harness.serving.values())
    await until(lambda: all(harness.has_last(name) for name in frames))
    for name, own in frames.items():
        sounds = [one for one in harness.got[name] if isinstance(one.message, Sound)]
        pcm = np.concatenate([one.tensors["pcm"].numpy() for one in sounds])
        assert np.array_equal(pcm, RunningSum.whole(own))
        assert sounds[-1].message == Sound(6)


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("injected"), 500), (torch.OutOfMemoryError("x"), 507)]
)
async def test_a_failure_ends_one_request_with_the_stage_s_name(
    error: Exception, status: int, harness: StageHarness
) -> None:
    decoder_of(harness).error = error
    await harness.open("good", "guilty")
    harness.send("guilty", np.full((2, 2), GUILTY, np.int32), last=True)
    harness.send("good", codes_of(2), last=True)
    good, guilty = await asyncio.gather(*harness.serving.values(), return_exceptions=True)
    assert good is None
    assert isinstance(guilty, RequestError)
    assert guilty.status == status
    assert "Stage code2wav" in guilty.message
    await harness.stage.alive()


async def test_a_cancel_frees_the_slot_for_one_who_waits(harness: StageHarness) -> None:
    """Although nothing else comes that would make the stage look again."""
    names = [f"r{number}" for number in range(4)]
    await harness.open(*names, "late")
    for name in names:
        harness.send(name, codes_of(1))
    harness.send("late", codes_of(1), last=True)
    await until(lambda: all(harness.got[name] for name in names))
    await asyncio.sleep(0.1)  # the stage has looked again and found nothing that it can do
    assert not harness.got["late"]
    harness.serving["r2"].cancel()
    await asyncio.gather(harness.serving["r2"], return_exceptions=True)
    await asyncio.wait_for(harness.serving["late"], 600)


async def test_an_unread_answer_is_held_and_the_others_go_on(harness: StageHarness) -> None:
    harness.unread.add("slow")
    await harness.open("slow", "quick")
    num_chunks = 2 * WINDOW
    for number in range(num_chunks):
        harness.send("slow", codes_of(1, number), last=number == num_chunks - 1)
    await until(lambda: len(harness.got["slow"]) == WINDOW)
    harness.send("quick", codes_of(3), last=True)
    await harness.serving["quick"]
    assert len(harness.got["slow"]) == WINDOW
    assert not harness.serving["slow"].done()
    harness.unread.clear()
    harness.gateway.forget("slow")
    await asyncio.wait_for(harness.serving["slow"], 600)
    await until(lambda: harness.has_last("slow"))
    assert harness.num_samples("slow") == 3 * num_chunks - 1


async def test_a_family_that_does_not_say_how_weights_are_read_takes_no_such_commands(
    harness: StageHarness,
) -> None:
    assert harness.ready.commands == dict.fromkeys(PROFILE, NO_FOLDER)
    with pytest.raises(RequestError, match="does not know the command sleep"):
        await harness.stage.control("sleep", {"level": 1, "tags": None})
    with pytest.raises(RequestError, match="has no profile_folder"):
        await harness.stage.control("start_profile", {"prefix": None})


async def test_a_profile_has_the_decodes_of_requests_that_run(tmp_path: Path) -> None:
    def make_stage(ports: StagePorts) -> DecoderStage:
        return SumStage(replace(ports, engine={"profile_folder": str(tmp_path / "traces")}))

    harness = StageHarness(tmp_path, make_stage)
    ready = await harness.start()
    assert ready.commands == dict.fromkeys(PROFILE, "")
    await harness.open("one")
    harness.send("one", codes_of(2))
    await until(partial(harness.has_frames, "one", 2))
    begun = await harness.stage.control("start_profile", {"prefix": "mine"})
    for number in range(2, 5):
        harness.send("one", codes_of(2))
        await until(partial(harness.has_frames, "one", 2 * number))
    assert await harness.stage.control("stop_profile", {}) == begun
    await harness.close()
    with gzip.open(begun["file"]) as file:
        trace = json.load(file)
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") != "Trace"]
    assert names.count("decode_1") == 3
    assert any(name.startswith("aten::") for name in names)
