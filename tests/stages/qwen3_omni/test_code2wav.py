import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni import code2wav
from omnistage.stages.qwen3_omni.code2wav import Audio, Code2Wav, to_int16
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder, VocoderState

Codes = npt.NDArray[np.int32]


class WatchedVocoder(StreamingVocoder):
    """Notes the batches it decodes."""

    def __init__(self, model: Qwen3OmniMoeCode2Wav, num_slots: int) -> None:
        super().__init__(model, num_slots)
        self.batches: list[tuple[int, int]] = []

    def decode(
        self, states: Sequence[VocoderState], codes: torch.Tensor
    ) -> tuple[torch.Tensor, list[int]]:
        self.batches.append((codes.shape[0], codes.shape[-1]))
        return super().decode(states, codes)


def random_codes(num_frames: int, seed: int = 0) -> Codes:
    return np.random.default_rng(seed).integers(0, 32, (num_frames, 4), dtype=np.int32)


@torch.inference_mode()
def whole_decode(model: Qwen3OmniMoeCode2Wav, codes: Codes) -> npt.NDArray[np.int16]:
    return to_int16(model(torch.from_numpy(codes.T[None]).long())[0, 0]).numpy()


def assert_same_sound(pcm: npt.NDArray[np.int16], expected: npt.NDArray[np.int16]) -> None:
    assert pcm.dtype == np.int16
    assert pcm.shape == expected.shape
    assert np.abs(pcm.astype(int) - expected).max(initial=0) <= 1


def run(engine: Code2Wav) -> dict[str, list[Audio]]:
    answers = defaultdict(list)
    while audios := engine.step():
        for audio in audios:
            answers[audio.request_id].append(audio)
    return answers


def join(audios: list[Audio]) -> npt.NDArray[np.int16]:
    return np.concatenate([audio.pcm for audio in audios])


def test_chunks_of_one_request(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=1))
    codes = random_codes(9)
    engine.open("a")
    answers = []
    for start, end in ((0, 1), (1, 3), (3, 9)):
        engine.push("a", codes[start:end], last=end == 9)
        (answer,) = engine.step()
        answers.append(answer)
        assert engine.step() == []
    assert [answer.last for answer in answers] == [False, False, True]
    assert np.array_equal(np.concatenate([answer.codes for answer in answers]), codes)
    assert_same_sound(join(answers), whole_decode(vocoder_model, codes))
    assert engine.num_streams == 0


def test_equal_lengths_are_one_batch(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = WatchedVocoder(vocoder_model, num_slots=8)
    engine = Code2Wav(vocoder)
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
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=2))
    engine.open("long")
    engine.push("long", random_codes(25), last=False)
    engine.open("first")
    engine.push("first", random_codes(1), last=False)
    assert [audio.request_id for audio in engine.step()] == ["first"]
    assert [audio.request_id for audio in engine.step()] == ["long"]


def test_an_empty_answer(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    engine.push("a", None, last=True)
    (audio,) = engine.step()
    assert audio.last
    assert audio.pcm.shape == (0,)
    assert audio.codes.shape == (0, 4)
    assert engine.step() == []
    assert engine.num_streams == 0


def test_an_empty_last_chunk_after_sound(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=1))
    codes = random_codes(3)
    engine.open("a")
    engine.push("a", codes, last=False)
    engine.push("a", np.zeros((0, 4), np.int32), last=True)
    audios = run(engine)["a"]
    assert [(len(audio.codes), audio.last) for audio in audios] == [(3, False), (0, True)]
    assert_same_sound(join(audios), whole_decode(vocoder_model, codes))


def test_more_requests_than_slots_wait_their_turn(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = WatchedVocoder(vocoder_model, num_slots=16)
    engine = Code2Wav(vocoder)
    codes = {f"r{index}": random_codes(2, index) for index in range(512)}
    for name in codes:
        engine.open(name)
        engine.push(name, codes[name][:1], last=False)
    answers: dict[str, list[Audio]] = {name: [] for name in codes}
    num_steps = 0
    while audios := engine.step():
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
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=2))
    codes = {name: random_codes(6, seed) for seed, name in enumerate("abcd")}
    for name in codes:
        engine.open(name)
        engine.push(name, codes[name][:3], last=False)
    first = {audio.request_id: audio for audio in engine.step()}
    assert set(first) == {"a", "b"}
    assert engine.step() == []
    engine.cancel("a")
    engine.cancel("a")
    engine.cancel("never opened")
    (third,) = engine.step()
    assert third.request_id == "c"
    for name in "bc":
        engine.push(name, codes[name][3:], last=True)
    answers = run(engine)
    assert set(answers) == {"b", "c", "d"}
    assert_same_sound(join([first["b"], *answers["b"]]), whole_decode(vocoder_model, codes["b"]))
    assert_same_sound(join([third, *answers["c"]]), whole_decode(vocoder_model, codes["c"]))
    assert_same_sound(join(answers["d"]), whole_decode(vocoder_model, codes["d"][:3]))


def test_a_request_id_may_come_again_after_a_cancel(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    engine.push("a", random_codes(3, seed=1), last=False)
    engine.step()
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
        def decode(
            self, states: Sequence[VocoderState], codes: torch.Tensor
        ) -> tuple[torch.Tensor, list[int]]:
            decoding.set()
            assert proceed.wait(10)
            return super().decode(states, codes)

    engine = Code2Wav(PausedVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    engine.push("a", random_codes(2, seed=1), last=False)
    answers: list[Audio] = []
    thread = threading.Thread(target=lambda: answers.extend(engine.step()))
    thread.start()
    assert decoding.wait(10)
    engine.cancel("a")
    codes = random_codes(3, seed=2)
    engine.open("a")
    engine.push("a", codes, last=True)
    proceed.set()
    thread.join()
    assert [len(audio.codes) for audio in answers] == [3]
    assert_same_sound(join(answers), whole_decode(vocoder_model, codes))


def test_long_chunks_are_decoded_in_pieces(
    vocoder_model: Qwen3OmniMoeCode2Wav, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code2wav, "MAX_PIECE_FRAMES", 4)
    monkeypatch.setattr(code2wav, "MAX_BATCH_FRAMES", 8)
    vocoder = WatchedVocoder(vocoder_model, num_slots=3)
    engine = Code2Wav(vocoder)
    codes = {name: random_codes(10, seed) for seed, name in enumerate("abc")}
    for name in codes:
        engine.open(name)
        engine.push(name, codes[name], last=True)
    answers = run(engine)
    assert {name: len(audios) for name, audios in answers.items()} == dict.fromkeys("abc", 1)
    assert max(rows * frames for rows, frames in vocoder.batches) == 8
    for name, (audio,) in answers.items():
        assert np.array_equal(audio.codes, codes[name])
        assert_same_sound(audio.pcm, whole_decode(vocoder_model, codes[name]))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((2, 3), np.int32), r"expected \[n, 4\]"),
        (np.full((1, 4), 32, np.int32), "0..31"),
        (np.full((1, 4), -1, np.int32), "0..31"),
    ],
)
def test_wrong_codes_are_refused(
    vocoder_model: Qwen3OmniMoeCode2Wav, codes: Codes, message: str
) -> None:
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    with pytest.raises(ValueError, match=message):
        engine.push("a", codes, last=False)


def test_frames_of_no_request_are_refused(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = Code2Wav(StreamingVocoder(vocoder_model, num_slots=1))
    with pytest.raises(ValueError, match="takes no frames"):
        engine.push("a", random_codes(1), last=False)
    engine.open("a")
    with pytest.raises(ValueError, match="open already"):
        engine.open("a")
    engine.push("a", random_codes(1), last=True)
    with pytest.raises(ValueError, match="takes no frames"):
        engine.push("a", random_codes(1), last=True)


def test_warm_up_leaves_every_slot_free(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = StreamingVocoder(vocoder_model, num_slots=2)
    Code2Wav(vocoder).warm_up()
    assert vocoder.num_free == 2


@pytest.mark.parametrize("wrong", [{"dtype": "float"}, {"load_format": "x"}, {"num_slots": 0}])
def test_wrong_options_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Code2Wav.from_checkpoint(str(tmp_path), **wrong)  # type: ignore[arg-type]


def test_samples_are_rounded_and_clipped() -> None:
    samples = to_int16(torch.tensor([-2.0, -1.0, 0.0, 0.6 / 32767, 1.0, 3.0]))
    assert samples.tolist() == [-32767, -32767, 0, 1, 32767, 32767]
