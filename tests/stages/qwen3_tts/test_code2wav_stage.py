"""Qwen3-TTS's code2wav as a stage: a voice's frames ahead, asleep and awake, other weights."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from references.qwen3_tts_inputs import STRIDE, codes
from support.stages.decoder_stage import OPEN, StageHarness
from support.waiting import until

from omnistage.connectors.chunk import Tensor
from omnistage.stages.device.start import DoesNotFit
from omnistage.stages.messages.edge import Lead, Open, described
from omnistage.stages.messages.to_gateway import Sound
from omnistage.stages.qwen3_tts.code2wav_stage import Code2WavStage
from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
from omnistage.stages.vocoder import start as starting
from omnistage.stages.vocoder.checkpoint_vocoder import CheckpointWeights
from omnistage.stages.vocoder.control import TAGS, DecoderControl
from omnistage.stages.vocoder.decoder import to_int16
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.start import DecoderOptions
from omnistage.stages.vocoder.streams import DecodedAudio
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts

SAMPLES_A_FRAME = 1920
OPTIONS = {"num_slots": 2, "device": "cpu"}

Pcm = npt.NDArray[np.int16]


@pytest.fixture
async def harness(voice_model: Path, tmp_path: Path) -> AsyncIterator[StageHarness]:
    def make(ports: StagePorts) -> Code2WavStage:
        ports.model, ports.engine = str(voice_model), dict(OPTIONS)
        return Code2WavStage(ports)

    harness = StageHarness(tmp_path, make)
    await harness.start()
    yield harness
    await harness.close()


def open_with(harness: StageHarness, name: str, lead: npt.NDArray[np.int32]) -> None:
    """As the talker opens a request that clones a voice."""
    message = Open(OPEN.request, described(Lead(len(lead))))
    opened = Opened(name, message, {"lead": Tensor.from_numpy(lead)})
    harness.serving[name] = asyncio.create_task(harness.stage.serve(opened))


async def test_four_at_once_on_two_slots_sound_as_the_packages(
    harness: StageHarness, recorded: dict[str, torch.Tensor]
) -> None:
    """Two of them go on from the frames of a reference, and only their own are heard."""
    assert (harness.ready.sample_rate_hz, harness.ready.num_channels) == (24_000, 1)
    leads = {"a": 0, "b": 7, "c": 14, "d": 0}  # whole steps of the recorded samples
    frames = dict(zip(leads, [*codes(), *codes()], strict=True))
    for name, num_lead in leads.items():
        if num_lead:
            open_with(harness, name, frames[name][:num_lead])
        else:
            await harness.open(name)
    await asyncio.sleep(0)
    for name, num_lead in leads.items():
        own = frames[name][num_lead:]
        harness.send(name, own[:1])
        harness.send(name, own[1:], last=True)
    await asyncio.gather(*harness.serving.values())
    await until(lambda: all(harness.has_last(name) for name in leads))
    for number, (name, num_lead) in enumerate(leads.items()):
        sounds = [one for one in harness.got[name] if isinstance(one.message, Sound)]
        pcm = np.concatenate([one.tensors["pcm"].numpy() for one in sounds]).astype(int)
        num_own = len(frames[name]) - num_lead
        assert sounds[-1].message == Sound(num_own)
        assert len(pcm) == num_own * SAMPLES_A_FRAME
        whole = to_int16(recorded["samples"][number % 2]).numpy()
        expected = whole[num_lead * SAMPLES_A_FRAME // STRIDE :]
        assert np.abs(pcm[::STRIDE] - expected).max() <= 1


async def test_it_takes_commands_but_not_while_a_request_is_there(harness: StageHarness) -> None:
    taken = {name for name, why in harness.ready.commands.items() if not why}
    assert taken == {"sleep", "wake", "load_weights"}
    open_with(harness, "one", codes()[0][:4])
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as caught:
        await harness.stage.control("sleep", {"level": 1, "tags": None})
    assert caught.value.code == "busy"
    harness.send("one", codes()[0][4:6], last=True)
    await harness.serving["one"]
    assert await harness.stage.control("sleep", {"level": 1, "tags": None}) == {
        "asleep": list(TAGS)
    }
    assert await harness.stage.control("wake", {"tags": None}) == {"asleep": []}


# Weights


class Made:
    """The stage's engine over a checkpoint, and its control."""

    def __init__(self, folder: Path, **more: Any) -> None:
        options = DecoderOptions(num_slots=2, device="cpu", **more)
        self.engine: DecoderEngine[Slot] = StreamingVocoder.engine(str(folder), "code2wav", options)
        self.control = DecoderControl(
            self.engine, CheckpointWeights(StreamingVocoder, str(folder), options)
        )

    @property
    def vocoder(self) -> StreamingVocoder:
        """The engine's."""
        assert isinstance(self.engine.decoder, StreamingVocoder)
        return self.engine.decoder

    def samples(self) -> Pcm:
        """Of a few frames, always the same."""
        self.engine.open("one", codes()[1][:2])
        self.engine.push("one", codes()[0][:4], last=True)
        (answer,) = self.engine.step()
        assert isinstance(answer, DecodedAudio)
        assert len(answer.pcm) == 4 * SAMPLES_A_FRAME
        return answer.pcm

    def obey(self, command: str, **arguments: Any) -> list[str]:
        """What sleeps then."""
        asleep: list[str] = self.control.obey(command, arguments)["asleep"]
        return asleep

    @property
    def num_stored(self) -> int:
        """Bytes of weights and states that the engine's vocoder holds."""
        parts = [*self.vocoder.model.parameters(), self.vocoder.slots.rows]
        return sum(part.nbytes for part in parts if not part.is_meta)


@pytest.mark.parametrize("level", [1, 2])
def test_one_that_slept_makes_the_same_samples(level: int, voice_model: Path) -> None:
    made = Made(voice_model)
    before, stored = made.samples(), made.num_stored
    assert before.any()
    assert made.obey("sleep", level=level, tags=None) == list(TAGS)
    assert stored > 0
    assert made.num_stored == 0
    assert made.obey("wake", tags=["kv_cache"]) == ["weights"]
    assert made.num_stored == 0
    assert made.obey("wake", tags=["weights"]) == []
    assert made.num_stored == stored
    assert np.array_equal(made.samples(), before)


def test_dummy_weights_come_back_from_level_2(voice_model: Path) -> None:
    made = Made(voice_model, load_format="dummy")
    before = [one.clone() for one in made.vocoder.model.parameters()]
    assert any(one.std() > 0 for one in before if one.dim() > 1)
    made.obey("sleep", level=2, tags=None)
    assert made.num_stored == 0
    made.obey("wake", tags=None)
    after = made.vocoder.model.parameters()
    assert all(torch.equal(*both) for both in zip(before, after, strict=True))


def test_other_weights_make_the_samples_of_their_checkpoint(
    voice_model: Path, other_voice_model: Path
) -> None:
    made, other = Made(voice_model), Made(other_voice_model).samples()
    own = made.samples()
    assert not np.array_equal(own, other)
    made.obey("load_weights", path=str(other_voice_model))
    assert np.array_equal(made.samples(), other)
    made.obey("sleep", level=2, tags=None)
    made.obey("wake", tags=None)
    assert np.array_equal(made.samples(), other)
    made.obey("load_weights", path=str(voice_model))
    assert np.array_equal(made.samples(), own)


def test_weights_that_do_not_fit_are_refused_and_change_nothing(
    voice_model: Path, tmp_path: Path
) -> None:
    made = Made(voice_model)
    before = made.samples()
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(RequestError) as caught:
            made.obey("load_weights", path=str(path))
        assert (caught.value.status, caught.value.param) == (400, "path")
    assert np.array_equal(made.samples(), before)


def test_it_says_that_it_does_not_fit_before_it_reads_weights(
    tmp_path: Path, voice_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "speech_tokenizer").mkdir()
    config = (voice_model / "speech_tokenizer" / "config.json").read_bytes()
    (tmp_path / "speech_tokenizer" / "config.json").write_bytes(config)  # and no weights
    sizes = StreamingVocoder.memory(str(tmp_path), torch.float32, 3)
    monkeypatch.setattr(starting, "free_bytes", lambda device: sum(sizes.values()))
    with pytest.raises(DoesNotFit, match=r"stage singer does not fit on cpu: .* lower num_slots"):
        StreamingVocoder.engine(str(tmp_path), "singer", DecoderOptions(num_slots=4, device="cpu"))
    options = DecoderOptions(num_slots=3, device="cpu", load_format="dummy")
    assert StreamingVocoder.engine(str(tmp_path), "singer", options).decoder.num_free == 3
