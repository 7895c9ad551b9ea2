"""The engine with decoders of no family: slots, batches, order, cancels, holds and failures."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.models.toy_decoders import GUILTY, Pairs, RunningSum, codes_of, floats_of

from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vocoder import engine as decoding
from omnistage.stages.vocoder.decoder import to_int16
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.streams import DecodedAudio, DecodeFailed, Limits

Make = Callable[[int], RunningSum | Pairs]
MakeFrames = Callable[[int, int], npt.NDArray[Any]]
TOYS = pytest.mark.parametrize(
    ("make", "frames_of"),
    [(RunningSum, codes_of), (Pairs, floats_of)],
    ids=["codes in slots", "floats in two steps"],
)


def run(engine: DecoderEngine[Any]) -> tuple[dict[str, list[DecodedAudio]], list[DecodeFailed]]:
    """Every answer, and who failed."""
    answers = defaultdict(list)
    failed = []
    while found := engine.step():
        for answer in found:
            if isinstance(answer, DecodeFailed):
                failed.append(answer)
            else:
                answers[answer.request_id].append(answer)
    return answers, failed


def pcm_of(audios: list[DecodedAudio]) -> npt.NDArray[np.int16]:
    return np.concatenate([audio.pcm for audio in audios])


def push(engine: DecoderEngine[Any], name: str, frames: npt.NDArray[Any], *sizes: int) -> None:
    """All frames in chunks of these sizes."""
    for index, part in enumerate(np.split(frames, np.cumsum(sizes)[:-1])):
        engine.push(name, part, last=index == len(sizes) - 1)


@TOYS
@pytest.mark.parametrize("sizes", [(9,), (1, 2, 6), (3, 6, 0), (1,) * 9], ids=str)
def test_chunks_equal_the_whole(make: Make, frames_of: MakeFrames, sizes: tuple[int, ...]) -> None:
    decoder = make(3)
    engine: DecoderEngine[Any] = DecoderEngine(decoder, Limits(piece_frames=4, batch_frames=8))
    frames = {name: frames_of(9, seed) for seed, name in enumerate("abcde")}
    for name, own in frames.items():
        engine.open(name)
        push(engine, name, own, *sizes)
    answers, failed = run(engine)
    assert not failed
    for name, audios in answers.items():
        assert [len(audio.frames) for audio in audios] == list(sizes)
        assert [audio.last for audio in audios] == [False] * (len(sizes) - 1) + [True]
        assert np.array_equal(pcm_of(audios), decoder.whole(frames[name]))
    assert answers.keys() == frames.keys()
    assert max(map(sum, decoder.batches)) <= 8
    assert decoder.num_free == 3
    assert engine.num_streams == 0


def test_only_equal_groups_share_a_batch() -> None:
    decoder = RunningSum(8)
    engine = DecoderEngine(decoder)
    for name, size in (("a", 2), ("b", 3), ("c", 2), ("d", 3)):
        engine.open(name)
        push(engine, name, codes_of(size), size)
    run(engine)
    assert decoder.batches == [[2, 2], [3, 3]]


@TOYS
def test_with_one_stream_a_batch_nobody_is_decoded_with_another(
    make: Make, frames_of: MakeFrames
) -> None:
    decoder = make(4)
    engine: DecoderEngine[Any] = DecoderEngine(decoder, Limits(batch_streams=1))
    frames = {name: frames_of(4, seed) for seed, name in enumerate("abc")}
    for name, own in frames.items():
        engine.open(name)
        push(engine, name, own, 2, 2)
    answers, failed = run(engine)
    assert not failed
    assert {len(batch) for batch in decoder.batches} == {1}
    for name, audios in answers.items():
        assert np.array_equal(pcm_of(audios), decoder.whole(frames[name]))


def test_a_decoder_may_let_all_lengths_share_a_batch() -> None:
    decoder = Pairs(8)
    engine = DecoderEngine(decoder)
    for name, size in (("a", 2), ("b", 3), ("c", 2)):
        engine.open(name)
        push(engine, name, floats_of(size), size)
    run(engine)
    assert decoder.batches == [[2, 2, 3], [2, 2, 3]]


def test_a_stream_joins_between_two_steps_of_another() -> None:
    """A piece that takes several steps does not make others wait for its last one."""
    decoder = Pairs(8)
    engine = DecoderEngine(decoder)
    frames = {name: floats_of(4, seed) for seed, name in enumerate("ab")}
    engine.open("a")
    push(engine, "a", frames["a"], 4)
    decode = decoder.decode

    def joining(pieces: Any) -> Any:
        if len(decoder.batches) == 0:
            engine.open("b")
            push(engine, "b", frames["b"], 4)
        return decode(pieces)

    decoder.decode = joining  # type: ignore[method-assign]
    answers, _ = run(engine)
    assert decoder.batches == [[4], [4, 4], [4]]
    for name, audios in answers.items():
        assert np.array_equal(pcm_of(audios), decoder.whole(frames[name]))


def test_a_short_first_chunk_goes_ahead_of_a_long_one_by_the_length_of_its_sound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten frames last 3.75 ms here: after that the long one is due before a new short one."""
    now = 0.0
    monkeypatch.setattr(decoding, "time", SimpleNamespace(monotonic=lambda: now))
    for waited_s, expected in ((0.003, [[1], [10]]), (0.004, [[10], [1]])):
        decoder = RunningSum(8)
        engine = DecoderEngine(decoder)
        engine.open("long")
        push(engine, "long", codes_of(10), 10)
        now += waited_s
        engine.open("short")
        push(engine, "short", codes_of(1), 1)
        run(engine)
        assert decoder.batches == expected


@TOYS
def test_requests_beyond_the_slots_wait_in_order(make: Make, frames_of: MakeFrames) -> None:
    decoder = make(2)
    engine: DecoderEngine[Any] = DecoderEngine(decoder)
    for name in "abcd":
        engine.open(name)
        engine.push(name, frames_of(2, 0), last=False)
    assert sorted(audio.request_id for audio in engine.step()) == ["a", "b"]
    assert engine.step() == []
    engine.cancel("b")
    assert [audio.request_id for audio in engine.step()] == ["c"]
    engine.push("a", None, last=True)
    ended, _ = run(engine)
    assert [*ended] == ["a", "d"]
    for name in "cd":
        engine.cancel(name)
    assert engine.step() == []
    assert decoder.num_free == 2


@TOYS
def test_a_cancel_amid_a_step_leaves_the_others_sound(make: Make, frames_of: MakeFrames) -> None:
    decoder = make(4)
    engine: DecoderEngine[Any] = DecoderEngine(decoder)
    frames = {name: frames_of(4, seed) for seed, name in enumerate("abc")}
    for name, own in frames.items():
        engine.open(name)
        push(engine, name, own, 2, 2)
    decode = decoder.decode

    def cancelling(pieces: Any) -> Any:
        if not decoder.batches:
            engine.cancel("b")
        return decode(pieces)

    decoder.decode = cancelling  # type: ignore[method-assign]
    answers, failed = run(engine)
    assert not failed
    assert sorted(answers) == ["a", "c"]
    for name, audios in answers.items():
        assert np.array_equal(pcm_of(audios), decoder.whole(frames[name]))
    assert decoder.num_free == 4


@TOYS
def test_nothing_of_a_held_request_is_decoded(make: Make, frames_of: MakeFrames) -> None:
    decoder = make(4)
    engine: DecoderEngine[Any] = DecoderEngine(decoder)
    frames = {name: frames_of(4, seed) for seed, name in enumerate("ab")}
    for name, own in frames.items():
        engine.open(name)
        push(engine, name, own, 2, 2)
    engine.hold("a", True)
    answers, _ = run(engine)
    assert [*answers] == ["b"]
    assert not engine.is_idle("a")
    engine.hold("a", False)
    released, _ = run(engine)
    assert np.array_equal(pcm_of(released["a"]), decoder.whole(frames["a"]))


@TOYS
@pytest.mark.parametrize(
    "error", [RuntimeError("injected"), torch.OutOfMemoryError("injected")], ids=["run", "memory"]
)
def test_of_a_batch_that_fails_only_the_guilty_request_fails(
    make: Make, frames_of: MakeFrames, error: Exception
) -> None:
    decoder = make(4)
    decoder.error = error
    engine: DecoderEngine[Any] = DecoderEngine(decoder)
    frames = {name: frames_of(6, seed) for seed, name in enumerate("abc")}
    frames["b"][3] = GUILTY
    for name, own in frames.items():
        engine.open(name)
        push(engine, name, own, 2, 2, 2)
    answers, failed = run(engine)
    assert failed == [DecodeFailed("b", isinstance(error, torch.OutOfMemoryError))]
    assert len(answers.pop("b")) == 1
    for name, audios in answers.items():
        assert np.array_equal(pcm_of(audios), decoder.whole(frames[name]))
    assert [len(batch) for batch in decoder.batches].count(1) >= 3
    assert decoder.num_free == 4
    assert engine.num_streams == 0


@TOYS
def test_warm_up_leaves_every_slot_free(make: Make, frames_of: MakeFrames) -> None:
    decoder = make(2)
    engine: DecoderEngine[Any] = DecoderEngine(decoder)
    engine.warm_up()
    assert decoder.batches == [[1]]
    assert decoder.num_free == 2
    engine.open("a")
    push(engine, "a", frames_of(3, 0), 3)
    answers, _ = run(engine)
    assert np.array_equal(pcm_of(answers["a"]), decoder.whole(frames_of(3, 0)))


@pytest.mark.parametrize(
    ("make", "shape"), [(RunningSum, (0, 2)), (Pairs, (0,))], ids=["stereo", "mono"]
)
def test_an_answer_without_frames_has_no_samples(make: Make, shape: tuple[int, ...]) -> None:
    engine: DecoderEngine[Any] = DecoderEngine(make(1))
    engine.open("a")
    engine.push("a", None, last=True)
    (audio,) = engine.step()
    assert isinstance(audio, DecodedAudio)
    assert audio.pcm.shape == shape


def test_a_decoder_hears_what_a_stream_was_asked_for() -> None:
    decoder = Pairs(2)
    engine = DecoderEngine(decoder)
    asked = {name: Request(None, [], speaker=name, seed=seed) for seed, name in enumerate("ab")}
    for name, request in asked.items():
        engine.open(name, request=request)
        push(engine, name, floats_of(2), 2)
    run(engine)
    assert decoder.requests == [*asked.values()]


def test_frames_that_a_decoder_refuses_are_refused() -> None:
    engine = DecoderEngine(Pairs(1))
    engine.open("a")
    with pytest.raises(ValueError, match="no frames: int32"):
        engine.push("a", codes_of(1), last=True)


def test_samples_are_rounded_and_clipped() -> None:
    samples = to_int16(torch.tensor([-2.0, -1.0, 0.0, 0.6 / 32767, 1.0, 3.0]))
    assert samples.tolist() == [-32767, -32767, 0, 1, 32767, 32767]
