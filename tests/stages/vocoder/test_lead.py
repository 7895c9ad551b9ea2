"""Frames that go ahead of a request's own: decoded first, never heard, and in nobody's way."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.models.toy_decoders import GUILTY, Pairs, RunningSum, codes_of, floats_of
from support.stages.decoder_stage import OPEN, StageHarness
from support.waiting import until

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.edge import Lead, Open, described
from omnistage.stages.messages.to_gateway import Sound
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.stage import DecoderStage
from omnistage.stages.vocoder.streams import DecodedAudio, DecodeFailed, Limits
from omnistage.stages.worker.stage import Opened, StagePorts

Make = Callable[[int], RunningSum | Pairs]
MakeFrames = Callable[[int, int], npt.NDArray[Any]]
TOYS = pytest.mark.parametrize(
    ("make", "frames_of"),
    [(RunningSum, codes_of), (Pairs, floats_of)],
    ids=["samples come late", "frames are kept"],
)


def run(engine: DecoderEngine[Any]) -> dict[str, list[DecodedAudio]]:
    """Every answer; nothing fails."""
    answers = defaultdict(list)
    while found := engine.step():
        for answer in found:
            assert isinstance(answer, DecodedAudio)
            answers[answer.request_id].append(answer)
    return answers


def pcm_of(audios: list[DecodedAudio]) -> npt.NDArray[np.int16]:
    return np.concatenate([audio.pcm for audio in audios])


def push(engine: DecoderEngine[Any], name: str, frames: npt.NDArray[Any], *sizes: int) -> None:
    """All frames in chunks of these sizes."""
    for index, part in enumerate(np.split(frames, np.cumsum(sizes)[:-1])):
        engine.push(name, part, last=index == len(sizes) - 1)


def after(
    decoder: RunningSum | Pairs, lead: npt.NDArray[Any], frames: npt.NDArray[Any]
) -> npt.NDArray[np.int16]:
    """The sound of both together without its beginning, as long as the lead's frames last."""
    whole = decoder.whole(np.concatenate([lead, frames]))
    return whole[len(lead) * decoder.samples_per_frame :]


@TOYS
@pytest.mark.parametrize("sizes", [(5,), (1, 4), (2, 3, 0), (1,) * 5], ids=str)
@pytest.mark.parametrize("num_lead", [1, 4, 11])
def test_the_sound_goes_on_from_the_lead_and_is_all_that_is_heard(
    make: Make, frames_of: MakeFrames, sizes: tuple[int, ...], num_lead: int
) -> None:
    decoder = make(3)
    engine: DecoderEngine[Any] = DecoderEngine(decoder, Limits(piece_frames=4, batch_frames=8))
    leads = {name: frames_of(num_lead, 7 + seed) for seed, name in enumerate("abcde")}
    frames = {name: frames_of(5, seed) for seed, name in enumerate("abcde")}
    for name, own in frames.items():
        engine.open(name, leads[name] if name != "c" else None)
        push(engine, name, own, *sizes)
    answers = run(engine)
    for name, own in frames.items():
        assert [len(audio.frames) for audio in answers[name]] == list(sizes)
        assert [audio.last for audio in answers[name]] == [False] * (len(sizes) - 1) + [True]
        lead = leads[name] if name != "c" else own[:0]
        assert np.array_equal(pcm_of(answers[name]), after(decoder, lead, own))
    plain = decoder.whole(frames["a"])
    is_forgetful = isinstance(decoder, Pairs)  # its samples need what comes, not what was
    assert np.array_equal(pcm_of(answers["a"])[-len(plain) :], plain) == is_forgetful
    assert decoder.num_free == 3
    assert engine.num_streams == 0


def test_a_lead_is_decoded_before_its_request_has_frames() -> None:
    decoder = RunningSum(2)
    engine = DecoderEngine(decoder)
    lead, own = codes_of(6, 1), codes_of(2, 2)
    engine.open("a", lead)
    assert engine.is_idle("a")  # what upstream owes is its frames: it may be overdue
    assert engine.step() == []
    assert decoder.batches == [[6]]
    engine.push("a", own, last=True)
    assert not engine.is_idle("a")
    assert np.array_equal(pcm_of(run(engine)["a"]), after(decoder, lead, own))
    assert decoder.batches == [[6], [2]]


def test_frames_that_are_there_go_ahead_of_a_lead_for_which_none_wait() -> None:
    decoder = RunningSum(4)
    engine = DecoderEngine(decoder)
    engine.open("later", codes_of(20, 1))
    engine.open("now")
    engine.push("now", codes_of(2), last=True)
    engine.step()
    assert decoder.batches[0] == [2]


def test_a_lead_for_which_frames_wait_is_as_urgent_as_they_are() -> None:
    decoder = RunningSum(4)
    engine = DecoderEngine(decoder)
    engine.open("voice", codes_of(40, 1))
    engine.push("voice", codes_of(1), last=True)
    engine.open("long")
    engine.push("long", codes_of(30), last=True)
    engine.step()
    assert decoder.batches[0] == [40]


@TOYS
def test_a_stream_with_its_lead_alone_gives_its_slot_to_one_whose_frames_wait(
    make: Make, frames_of: MakeFrames
) -> None:
    """Upstream may make the frames of the first only when those of the second are taken."""
    decoder = make(1)
    engine: DecoderEngine[Any] = DecoderEngine(decoder)
    leads = {name: frames_of(3, 5 + seed) for seed, name in enumerate("abc")}
    frames = {name: frames_of(2, seed) for seed, name in enumerate("abc")}
    for name, lead in leads.items():
        engine.open(name, lead)
    assert engine.step() == []
    assert decoder.num_free == 0
    engine.push("c", frames["c"], last=True)
    assert np.array_equal(pcm_of(run(engine)["c"]), after(decoder, leads["c"], frames["c"]))
    for name in "ab":
        engine.push(name, frames[name], last=True)
    for name, audios in run(engine).items():
        assert np.array_equal(pcm_of(audios), after(decoder, leads[name], frames[name]))
    assert decoder.num_free == 1


def test_a_stream_that_was_heard_keeps_its_slot() -> None:
    decoder = RunningSum(1)
    engine = DecoderEngine(decoder)
    lead, own = codes_of(3, 1), codes_of(2, 2)
    engine.open("a", lead)
    engine.push("a", own[:1], last=False)
    first = run(engine)["a"]
    engine.open("b", codes_of(3, 3))
    engine.push("b", codes_of(1), last=True)
    assert engine.step() == []
    engine.push("a", own[1:], last=True)
    answers = run(engine)
    assert np.array_equal(pcm_of([*first, *answers["a"]]), after(decoder, lead, own))
    assert answers["b"][-1].last


def test_an_answer_without_frames_after_a_lead_has_no_samples() -> None:
    for make, lead in ((RunningSum, codes_of(3)), (Pairs, floats_of(3))):
        engine: DecoderEngine[Any] = DecoderEngine(make(1))
        engine.open("a", lead)
        engine.push("a", None, last=True)
        (audio,) = run(engine)["a"]
        assert audio.last
        assert not audio.pcm.size


def test_a_lead_that_cannot_be_decoded_fails_its_request_alone() -> None:
    decoder = RunningSum(4)
    engine = DecoderEngine(decoder)
    engine.open("guilty", np.full((2, 2), GUILTY, np.int32))
    engine.open("good", codes_of(2, 1))
    assert engine.step() == [DecodeFailed("guilty")]
    engine.push("good", codes_of(2), last=True)
    assert run(engine)["good"]
    assert decoder.num_free == 4
    with pytest.raises(ValueError, match=r"0\.\.99"):
        engine.open("wrong", np.full((1, 2), 100, np.int32))


def test_a_cancel_amid_a_lead_frees_its_slot() -> None:
    decoder = RunningSum(1)
    engine = DecoderEngine(decoder, Limits(piece_frames=2))
    engine.open("a", codes_of(5, 1))
    decode = decoder.decode

    def cancelling(pieces: Any) -> Any:
        if len(decoder.batches) == 1:
            engine.cancel("a")
        return decode(pieces)

    decoder.decode = cancelling  # type: ignore[method-assign]
    assert engine.step() == []
    assert decoder.batches == [[2], [2]]
    assert engine.step() == []
    assert decoder.num_free == 1


# In the stage


class SumStage(DecoderStage):
    """A family's stage: it says which engine."""

    def load(self, ports: StagePorts) -> DecoderEngine[Slot]:
        self.decoder = RunningSum(2)
        return DecoderEngine(self.decoder)


def opened(name: str, lead: npt.NDArray[np.int32], num_told: int) -> Opened:
    message = Open(OPEN.request, described(Lead(num_told)))
    return Opened(name, message, {"lead": Tensor.from_numpy(lead)})


async def test_a_stage_decodes_the_lead_that_comes_with_open(tmp_path: Path) -> None:
    harness = StageHarness(tmp_path, SumStage)
    await harness.start()
    stage = harness.stage
    assert isinstance(stage, SumStage)
    stage.decoder.batches.clear()
    lead, own = codes_of(9, 1), codes_of(4, 2)
    harness.serving["a"] = asyncio.create_task(stage.serve(opened("a", lead, 9)))
    await until(lambda: stage.decoder.batches == [[9]])
    assert not harness.got["a"]
    harness.send("a", own[:1])
    harness.send("a", own[1:], last=True)
    await harness.serving["a"]
    await until(lambda: harness.has_last("a"))
    pcm = np.concatenate([chunk.tensors["pcm"].numpy() for chunk in harness.got["a"]])
    assert np.array_equal(pcm, after(stage.decoder, lead, own))
    assert harness.got["a"][-1].message == Sound(4)
    with pytest.raises(ValueError, match="a lead of 9 frames, but 8 were told"):
        await stage.serve(opened("b", lead, 8))
    with pytest.raises(ValueError, match=r"0\.\.99"):
        await stage.serve(opened("c", lead + 100, 9))
    assert not stage._done
    await harness.close()
    assert stage._engine.num_streams == 0
    assert stage._engine.step() == []
    assert stage.decoder.num_free == 2
