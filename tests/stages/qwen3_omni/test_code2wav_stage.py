"""The code2wav stage over real channels: what one request suffers, the others do not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.stages.decoder_stage import StageHarness
from support.waiting import until
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.qwen3_omni.code2wav_stage import Code2WavStage
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.worker.failure import RequestError

GUILTY = 31  # a code that only the request has whose batches fail
SAMPLES = 1920


class FragileVocoder(StreamingVocoder):
    """Raises, once all is written, in each batch with the guilty code."""

    error: Exception = torch.OutOfMemoryError("injected")

    def _decode(self, rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        pcm = super()._decode(rows, codes)
        if (codes == GUILTY).any():
            raise self.error
        return pcm


@pytest.fixture
async def harness(
    vocoder_model: Qwen3OmniMoeCode2Wav, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StageHarness]:
    engine = DecoderEngine(FragileVocoder(vocoder_model, num_slots=8))
    monkeypatch.setattr(Code2WavStage, "load", lambda *_: engine)
    harness = StageHarness(tmp_path, Code2WavStage)
    await harness.start()
    yield harness
    await harness.close()
    assert engine.num_streams == 0
    assert engine.step() == []
    assert engine.decoder.num_free == 8


def codes(num_frames: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, GUILTY, (num_frames, 4), dtype=np.int32)


OUT_OF_MEMORY = (
    "Stage code2wav ran out of memory with this request alone: "
    "ask for less at once, or again when the server has less to do."
)


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (torch.OutOfMemoryError("injected"), 507, "out_of_memory", OUT_OF_MEMORY),
        (RuntimeError("injected"), 500, None, "Stage code2wav failed; its log says why."),
    ],
)
async def test_only_the_guilty_fails_and_its_error_says_what_happened(
    error: Exception,
    status: int,
    code: str | None,
    message: str,
    harness: StageHarness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FragileVocoder, "error", error)
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
    assert (guilty.status, guilty.code, guilty.message) == (status, code, message)
    assert guilty.told_by("code2wav").stage == "code2wav"
    await until(lambda: all(harness.has_last(name) for name in ("good", "fine")))
    assert harness.num_samples("good") == harness.num_samples("fine") == 6 * SAMPLES - 555
    assert not any(chunk.last for chunk in harness.got["guilty"])


async def test_the_stage_serves_on_after_a_failure(harness: StageHarness) -> None:
    await harness.open("guilty")
    harness.send("guilty", np.full((1, 4), GUILTY, np.int32), last=True)
    with pytest.raises(RequestError, match="Stage code2wav ran out of memory"):
        await harness.serving["guilty"]
    await harness.stage.alive()
    await harness.open("next")
    harness.send("next", codes(2), last=True)
    await harness.serving["next"]


async def test_it_takes_commands_but_not_while_a_request_is_there(harness: StageHarness) -> None:
    taken = {name for name, why in harness.ready.commands.items() if not why}
    assert taken == {"sleep", "wake", "load_weights"}
    await harness.open("one")
    with pytest.raises(RequestError) as caught:
        await harness.stage.control("sleep", {"level": 1, "tags": None})
    assert caught.value.code == "busy"
    harness.send("one", codes(2), last=True)
    await harness.serving["one"]
    assert await harness.stage.control("wake", {"tags": None}) == {"asleep": []}


# A client that does not read

WINDOW = 8


async def hold(harness: StageHarness, name: str, num_chunks: int) -> None:
    """A request none of whose outputs is read, held with all that it may have made."""
    harness.unread.add(name)
    await harness.open(name)
    for number in range(num_chunks):
        harness.send(name, codes(1, number), last=number == num_chunks - 1)
    await until(lambda: len(harness.got[name]) == WINDOW and not harness.codes.credit(name))


async def test_a_client_that_reads_nothing_holds_its_own_request_only(
    harness: StageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More chunks than may wait in a backlog: none is decoded, none fails."""
    monkeypatch.setattr("omnistage.connectors.sender.MAX_BACKLOG_CHUNKS", 16)
    num_chunks = 60
    harness.unread.add("slow")
    await harness.open("slow")
    sent = 0

    async def feed() -> None:
        """As the talker, which is held while it has no credit."""
        nonlocal sent
        while sent < num_chunks:
            await until(lambda: harness.codes.credit("slow"))
            harness.send("slow", codes(1, sent), last=sent == num_chunks - 1)
            sent += 1

    feeding = asyncio.create_task(feed())
    await until(lambda: len(harness.got["slow"]) == WINDOW and not harness.codes.credit("slow"))
    for name in ("one", "two"):
        await harness.open(name)
        harness.send(name, codes(3), last=True)
        await harness.serving[name]
    await asyncio.sleep(0.1)
    assert len(harness.got["slow"]) == WINDOW
    assert sent == 2 * WINDOW
    assert not harness.serving["slow"].done()
    await harness.stage.alive()
    harness.unread.clear()
    harness.gateway.forget("slow")
    await asyncio.wait_for(asyncio.gather(feeding, harness.serving["slow"]), 600)
    await until(lambda: harness.has_last("slow"))
    assert harness.num_samples("slow") == num_chunks * SAMPLES - 555
    assert harness.ports.room.num_waiting == 0


async def test_a_cancel_of_a_held_request_frees_all(harness: StageHarness) -> None:
    await hold(harness, "slow", 30)
    assert harness.ports.room.num_waiting == 1
    harness.serving["slow"].cancel()
    await asyncio.gather(harness.serving["slow"], return_exceptions=True)
    await asyncio.sleep(0)
    assert harness.ports.room.num_waiting == 0
    for end in (harness.outputs, harness.codes):
        end.forget("slow")
    for receiver in (harness.gateway, harness.rows):
        receiver.forget("slow")
    await until(lambda: harness.outputs.num_requests == harness.codes.num_requests == 0)


async def test_a_held_request_goes_on_chunk_by_chunk(harness: StageHarness) -> None:
    await hold(harness, "slow", 20)
    for num_read in range(1, 13):
        harness.gateway.grant("slow")
        await until(lambda at=WINDOW + num_read: len(harness.got["slow"]) == at)  # type: ignore[misc]
    await harness.serving["slow"]
    assert harness.has_last("slow")
    assert harness.num_samples("slow") == 20 * SAMPLES - 555


async def test_a_request_whose_upstream_waits_for_its_client_is_not_overdue(
    harness: StageHarness,
) -> None:
    harness.ports.deadlines = Deadlines(first_chunk_s=2.0, next_chunk_s=600.0)
    await harness.open("told", "untold")
    harness.stage.upstream_waits("told", "talker")
    with pytest.raises(RequestError, match="did not come in time"):
        await harness.serving["untold"]
    assert not harness.serving["told"].done()
