"""The token2wav stage over real channels: each request's own voice and seed, and its options."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.models.token2wav import asked, random_codes, speak
from support.stages.decoder_stage import StageHarness
from support.waiting import until

from omnistage.stages.messages.edge import Open
from omnistage.stages.messages.to_gateway import Sound
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.token2wav.token2wav import Token2Wav
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_options import Token2WavOptions
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_stage import Token2WavStage
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_weights import load_speakers, load_token2wav
from omnistage.stages.vocoder.decoder import to_int16
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts

OPTIONS = {"chunk": [1, 2], "ahead": 1, "context": 12}


@pytest.fixture
async def harness(tiny_qwen2_5_omni: Path, tmp_path: Path) -> AsyncIterator[StageHarness]:
    def make(ports: StagePorts) -> Token2WavStage:
        ports.model = str(tiny_qwen2_5_omni)
        ports.engine = {"num_slots": 3, "device": "cpu"}
        ports.options = OPTIONS
        return Token2WavStage(ports)

    harness = StageHarness(tmp_path, make)
    await harness.start()
    yield harness
    await harness.close()


def serve(harness: StageHarness, name: str, request: Request) -> None:
    opened = Opened(name, Open(request))
    harness.serving[name] = asyncio.create_task(harness.stage.serve(opened))


def alone(folder: Path, codes: npt.NDArray[np.int32], request: Request) -> npt.NDArray[Any]:
    model = load_token2wav(str(folder), torch.device("cpu"), torch.float32)
    schedule = Token2WavOptions.of(OPTIONS).schedule
    decoder = Token2Wav(model, load_speakers(str(folder)), schedule, 1)
    samples: npt.NDArray[Any] = to_int16(speak(decoder, codes, request)).numpy()
    return samples


async def test_each_request_has_its_own_speaker_and_seed(
    harness: StageHarness, tiny_qwen2_5_omni: Path
) -> None:
    asking = {"a": asked(1, "chelsie"), "b": asked(1, "Ethan"), "c": asked(2, None)}
    codes = random_codes(30)
    for name, request in asking.items():
        serve(harness, name, request)
    await asyncio.sleep(0)
    for start, end in ((0, 12), (12, 24), (24, 30)):
        for name in asking:
            harness.send(name, codes[start:end], last=end == 30)
    await asyncio.gather(*harness.serving.values())
    await until(lambda: all(harness.has_last(name) for name in asking))
    for name, request in asking.items():
        chunks = harness.got[name]
        pcm = np.concatenate([chunk.tensors["pcm"].numpy() for chunk in chunks])
        assert np.array_equal(pcm, alone(tiny_qwen2_5_omni, codes, request))
        assert chunks[-1].message == Sound(30)
        assert [len(chunk.tensors["pcm"].numpy()) > 0 for chunk in chunks] == [False, True, True]


async def test_a_speaker_that_the_checkpoint_has_not_is_refused(harness: StageHarness) -> None:
    serve(harness, "one", asked(1, "bob"))
    with pytest.raises(RequestError) as caught:
        await harness.serving["one"]
    assert (caught.value.status, caught.value.param) == (400, "audio.voice")
    assert "allowed: Chelsie, Ethan" in caught.value.message


async def test_it_says_its_rate_and_takes_commands(harness: StageHarness) -> None:
    assert (harness.ready.sample_rate_hz, harness.ready.num_channels) == (24_000, 1)
    taken = {name for name, why in harness.ready.commands.items() if not why}
    assert taken == {"sleep", "wake", "load_weights"}
    assert await harness.stage.control("sleep", {"level": 1, "tags": None}) == {
        "asleep": ["weights", "kv_cache"]
    }
    assert await harness.stage.control("wake", {"tags": None}) == {"asleep": []}
