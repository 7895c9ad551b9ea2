import threading
from collections.abc import Sequence

import numpy as np
from support.stages.watched_vocoder import (
    WatchedVocoder,
    assert_same_sound,
    join,
    random_codes,
    run,
    step,
    whole_decode,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import Decoded, StreamPiece
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.streams import DecodedAudio


def test_chunks_of_one_request(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=1))
    codes = random_codes(9)
    engine.open("a")
    answers = []
    for start, end in ((0, 1), (1, 3), (3, 9)):
        engine.push("a", codes[start:end], last=end == 9)
        (answer,) = step(engine)
        answers.append(answer)
        assert step(engine) == []
    assert [answer.last for answer in answers] == [False, False, True]
    assert np.array_equal(np.concatenate([answer.frames for answer in answers]), codes)
    assert_same_sound(join(answers), whole_decode(vocoder_model, codes))
    assert engine.num_streams == 0


def test_equal_lengths_are_one_batch(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = WatchedVocoder(vocoder_model, num_slots=8)
    engine = DecoderEngine(vocoder)
    codes = {name: random_codes(3 if name < "d" else 4, ord(name)) for name in "abcdef"}
    for name in codes:
        num_first = 1 if name < "d" else 2
        engine.open(name)
        engine.push(name, codes[name][:num_first], last=False)
        engine.push(name, codes[name][num_first:], last=True)
    answers = run(engine)
    assert vocoder.batches == [(3, 1), (6, 2), (3, 2)]
    for name, audios in answers.items():
        assert_same_sound(join(audios), whole_decode(vocoder_model, codes[name]))


def test_first_chunks_overtake_long_ones(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=2))
    engine.open("long")
    engine.push("long", random_codes(25), last=False)
    engine.open("first")
    engine.push("first", random_codes(1), last=False)
    assert [audio.request_id for audio in step(engine)] == ["first"]
    assert [audio.request_id for audio in step(engine)] == ["long"]


def test_an_empty_answer(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    engine.push("a", None, last=True)
    (audio,) = step(engine)
    assert audio.last
    assert audio.pcm.shape == (0,)
    assert audio.frames.shape == (0, 4)
    assert step(engine) == []
    assert engine.num_streams == 0


def test_an_empty_last_chunk_after_sound(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=1))
    codes = random_codes(3)
    engine.open("a")
    engine.push("a", codes, last=False)
    engine.push("a", np.zeros((0, 4), np.int32), last=True)
    audios = run(engine)["a"]
    assert [(len(audio.frames), audio.last) for audio in audios] == [(3, False), (0, True)]
    assert_same_sound(join(audios), whole_decode(vocoder_model, codes))


def test_more_requests_than_slots_wait_their_turn(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = WatchedVocoder(vocoder_model, num_slots=16)
    engine = DecoderEngine(vocoder)
    codes = {f"r{index}": random_codes(2, index) for index in range(512)}
    for name in codes:
        engine.open(name)
        engine.push(name, codes[name][:1], last=False)
    answers: dict[str, list[DecodedAudio]] = {name: [] for name in codes}
    num_steps = 0
    while audios := step(engine):
        num_steps += 1
        for audio in audios:
            answers[audio.request_id].append(audio)
            if not audio.last:
                engine.push(audio.request_id, codes[audio.request_id][1:], last=True)
    assert num_steps == 2 * 512 / 16
    assert set(vocoder.batches) == {(16, 1)}
    assert all([audio.last for audio in audios] == [False, True] for audios in answers.values())
    for name in ("r0", "r15", "r16", "r511"):
        assert_same_sound(join(answers[name]), whole_decode(vocoder_model, codes[name]))
    assert engine.num_streams == 0


def test_cancel_frees_slots_and_leaves_others_alone(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=2))
    codes = {name: random_codes(6, seed) for seed, name in enumerate("abcd")}
    for name in codes:
        engine.open(name)
        engine.push(name, codes[name][:3], last=False)
    first = {audio.request_id: audio for audio in step(engine)}
    assert set(first) == {"a", "b"}
    assert step(engine) == []
    engine.cancel("a")
    engine.cancel("a")
    engine.cancel("never opened")
    (third,) = step(engine)
    assert third.request_id == "c"
    for name in "bc":
        engine.push(name, codes[name][3:], last=True)
    answers = run(engine)
    assert set(answers) == {"b", "c", "d"}
    assert_same_sound(join([first["b"], *answers["b"]]), whole_decode(vocoder_model, codes["b"]))
    assert_same_sound(join([third, *answers["c"]]), whole_decode(vocoder_model, codes["c"]))
    assert_same_sound(join(answers["d"]), whole_decode(vocoder_model, codes["d"][:3]))


def test_a_request_id_may_come_again_after_a_cancel(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    engine.push("a", random_codes(3, seed=1), last=False)
    step(engine)
    engine.cancel("a")
    codes = random_codes(4, seed=2)
    engine.open("a")
    engine.push("a", codes, last=True)
    assert_same_sound(join(run(engine)["a"]), whole_decode(vocoder_model, codes))


def test_cancel_during_a_decode_keeps_the_slot_until_its_end(
    vocoder_model: Qwen3OmniMoeCode2Wav,
) -> None:
    decoding, proceed = threading.Event(), threading.Event()

    class PausedVocoder(StreamingVocoder):
        def decode(self, pieces: Sequence[StreamPiece[Slot]]) -> Decoded:
            decoding.set()
            assert proceed.wait(600)
            return super().decode(pieces)

    engine = DecoderEngine(PausedVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    engine.push("a", random_codes(2, seed=1), last=False)
    answers: list[DecodedAudio] = []
    thread = threading.Thread(target=lambda: answers.extend(step(engine)))
    thread.start()
    assert decoding.wait(600)
    engine.cancel("a")
    codes = random_codes(3, seed=2)
    engine.open("a")
    engine.push("a", codes, last=True)
    proceed.set()
    thread.join()
    assert [len(audio.frames) for audio in answers] == [3]
    assert_same_sound(join(answers), whole_decode(vocoder_model, codes))
