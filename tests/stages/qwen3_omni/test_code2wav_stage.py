"""The code2wav stage over real channels: what one request suffers, the others do not."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.waiting import until
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.qwen3_omni.code2wav import Code2Wav
from omnistage.stages.qwen3_omni.code2wav_stage import Code2WavStage
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import StagePorts

GUILTY = 31  # a code that only the request has whose batches fail
SAMPLES = 1920


class FragileVocoder(StreamingVocoder):
    """Out of memory, once all is written, in each batch with the guilty code."""

    def _decode(self, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        pcm = super()._decode(slots, codes)
        if (codes == GUILTY).any():
            raise torch.OutOfMemoryError("injected")
        return pcm


class Harness:
    """The stage, its upstream and its gateway."""

    def __init__(self, directory: Path) -> None:
        connector = make_connector("shm", directory, {})
        for address in ("talker.code2wav.rows", "code2wav.gateway"):
            connector.create(address)
        self.codes = connector.sender("talker.code2wav.rows")
        self.rows = connector.receiver("talker.code2wav.rows")
        self.outputs = connector.sender("code2wav.gateway")
        self.gateway = connector.receiver("code2wav.gateway")
        self.ports = StagePorts("code2wav", "", {}, {}, self.outputs, source="talker")
        self.stage = Code2WavStage(self.ports)
        self.serving: dict[str, asyncio.Task[None]] = {}
        self.got: dict[str, list[Chunk]] = defaultdict(list)
        self.unread: set[str] = set()  # requests whose client reads nothing

    async def start(self) -> None:
        await self.stage.start()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.rows.fileno(), self._drain)
        loop.add_reader(self.outputs.fileno(), self.outputs.flush)
        loop.add_reader(self.codes.fileno(), self.codes.flush)
        loop.add_reader(self.gateway.fileno(), self._read)

    def _drain(self) -> None:
        while (chunk := self.rows.receive()) is not None:
            self.stage.take(self.rows, chunk)

    def _read(self) -> None:
        while (chunk := self.gateway.receive()) is not None:
            self.got[chunk.request_id].append(chunk)
            if chunk.request_id not in self.unread:
                self.gateway.grant(chunk.request_id)

    async def open(self, *names: str) -> None:
        for name in names:
            self.serving[name] = asyncio.create_task(self.stage.serve(name, {"request": {}}))
        await asyncio.sleep(0)

    def send(self, name: str, codes: npt.NDArray[np.int32], last: bool = False) -> None:
        self.codes.send(Chunk(name, "codes", 0, {"codes": Tensor.from_numpy(codes)}, {}, last))

    def num_samples(self, name: str) -> int:
        return sum(chunk.tensors["pcm"].shape[0] for chunk in self.got[name])

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for task in self.serving.values():
            task.cancel()
        await asyncio.gather(*self.serving.values(), return_exceptions=True)
        await self.stage.close()
        for end in (self.codes, self.rows, self.outputs, self.gateway):
            loop.remove_reader(end.fileno())
            end.close()


@pytest.fixture
async def harness(
    vocoder_model: Qwen3OmniMoeCode2Wav, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Harness]:
    engine = Code2Wav(FragileVocoder(vocoder_model, num_slots=8))
    monkeypatch.setattr(Code2Wav, "from_checkpoint", lambda _: engine)
    harness = Harness(tmp_path)
    await harness.start()
    yield harness
    await harness.close()
    assert engine.num_streams == 0
    assert engine.step() == []
    assert engine.vocoder.num_free == 8


def codes(num_frames: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, GUILTY, (num_frames, 4), dtype=np.int32)


async def test_only_the_guilty_fails_and_its_error_names_the_stage(harness: Harness) -> None:
    names = ["good", "guilty", "fine"]
    await harness.open(*names)
    for number in range(3):
        for seed, name in enumerate(names):
            frames = codes(2, seed)
            if name == "guilty" and number == 1:
                frames[1] = GUILTY
            harness.send(name, frames, last=number == 2)
    tasks = (harness.serving[name] for name in names)
    good, guilty, fine = await asyncio.gather(*tasks, return_exceptions=True)
    assert (good, fine) == (None, None)
    assert isinstance(guilty, RequestError)
    assert (guilty.status, guilty.message) == (500, "Stage code2wav failed; its log says why.")
    assert guilty.to_meta("code2wav")["stage"] == "code2wav"
    await until(lambda: all(harness.got[name][-1].last for name in ("good", "fine")))
    assert harness.num_samples("good") == harness.num_samples("fine") == 6 * SAMPLES - 555
    assert not any(chunk.last for chunk in harness.got["guilty"])


async def test_the_stage_serves_on_after_a_failure(harness: Harness) -> None:
    await harness.open("guilty")
    harness.send("guilty", np.full((1, 4), GUILTY, np.int32), last=True)
    with pytest.raises(RequestError, match="Stage code2wav failed"):
        await harness.serving["guilty"]
    await harness.stage.alive()
    await harness.open("next")
    harness.send("next", codes(2), last=True)
    await harness.serving["next"]
