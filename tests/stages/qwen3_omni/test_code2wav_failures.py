"""Failures of the decoder, codes that are refused, and memory that is not there."""

import json
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.stages.watched_vocoder import (
    Codes,
    WatchedVocoder,
    assert_same_sound,
    join,
    random_codes,
    run,
    whole_decode,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.device.start import DoesNotFit
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder import engine as decoding
from omnistage.stages.vocoder import start as starting
from omnistage.stages.vocoder.decoder import Decoded, StreamPiece, to_int16
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.start import DecoderOptions
from omnistage.stages.vocoder.state import StreamBatch
from omnistage.stages.vocoder.streams import DecodedAudio, DecodeFailed, Limits

ERRORS = (torch.OutOfMemoryError("CUDA out of memory (injected)"), RuntimeError("injected"))


class FailingVocoder(StreamingVocoder):
    """Raises for batches that `fails` picks: before a decode, amid it, or when all is written."""

    def __init__(
        self,
        model: Qwen3OmniMoeCode2Wav,
        where: str,
        error: Exception,
        fails: Callable[[torch.Tensor], bool],
    ) -> None:
        super().__init__(model, num_slots=4)
        self._where, self._error, self._fails = where, error, fails
        self._is_failing = False
        self.num_rows: list[int] = []

    def decode(self, pieces: Sequence[StreamPiece[Slot]]) -> Decoded:
        self.num_rows.append(len(pieces))
        self._is_failing = self._fails(torch.from_numpy(np.stack([one.frames for one in pieces])))
        self._fail("before")
        decoded = super().decode(pieces)
        self._fail("after")
        return decoded

    def _decode(self, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        sound = self._sound

        def failing(hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
            pcm = sound(hidden, batch)
            self._fail("amid")
            return pcm

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_sound", failing)
            return super()._decode(slots, codes)

    def _fail(self, where: str) -> None:
        if self._is_failing and where == self._where:
            raise self._error


@pytest.mark.parametrize("error", ERRORS, ids=["memory", "runtime"])
@pytest.mark.parametrize("where", ["before", "amid", "after"])
def test_only_the_request_that_fails_alone_fails(
    vocoder_model: Qwen3OmniMoeCode2Wav,
    where: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is given back after the batch, before each is tried, and after the one that fails."""
    is_memory = isinstance(error, torch.OutOfMemoryError)
    guilty = 31  # a code that only the guilty one has, in its second chunk
    vocoder = FailingVocoder(
        vocoder_model, where, error, lambda codes: bool((codes == guilty).any())
    )
    released: list[int] = []
    monkeypatch.setattr(decoding, "release_cached", lambda: released.append(len(vocoder.num_rows)))
    engine = DecoderEngine(vocoder)
    codes = {name: random_codes(9, ord(name)) % guilty for name in "abcd"}
    codes["c"][4] = guilty
    for name in codes:
        engine.open(name)
        for start, end in ((0, 3), (3, 6), (6, 9)):
            engine.push(name, codes[name][start:end], last=end == 9)
    answers: dict[str, list[DecodedAudio]] = defaultdict(list)
    failed = []
    while found := engine.step():
        for answer in found:
            if isinstance(answer, DecodeFailed):
                failed.append(answer)
            else:
                answers[answer.request_id].append(answer)
    assert failed == [DecodeFailed("c", is_memory)]
    assert vocoder.num_rows == [4, 4, 1, 1, 1, 1, 3]
    assert released == ([2, 5] if is_memory else [])
    assert len(answers.pop("c")) == 1
    for name, audios in answers.items():
        assert [audio.last for audio in audios] == [False, False, True]
        assert_same_sound(join(audios), whole_decode(vocoder_model, codes[name]))
    assert engine.num_streams == 0
    assert engine.step() == []
    assert vocoder.num_free == 4


@pytest.mark.parametrize("where", ["before", "amid", "after"])
def test_a_batch_too_large_for_the_memory_fails_nobody(
    vocoder_model: Qwen3OmniMoeCode2Wav, where: str
) -> None:
    """Bit for bit as if each had been decoded alone in that step."""
    codes = {name: random_codes(6, ord(name)) for name in "abc"}

    def decoded(vocoder: StreamingVocoder, num_frames: int) -> dict[str, list[DecodedAudio]]:
        engine = DecoderEngine(vocoder)
        answers = []
        for name in codes:
            engine.open(name)
        for start, end in ((0, 2), (2, 4), (4, 6)):
            for name in codes:
                engine.push(name, codes[name][start:end], last=end == 6)
            engine.limits = Limits(batch_frames=num_frames if start == 2 else 400)
            answers.append(run(engine))
        assert engine.num_streams == 0
        return {name: [audio for round in answers for audio in round[name]] for name in codes}

    num_tries = iter(range(100))

    def fails(batch: torch.Tensor) -> bool:
        return next(num_tries) == 1  # the second round's

    failing = FailingVocoder(vocoder_model, where, ERRORS[0], fails)
    found = decoded(failing, 400)
    assert failing.num_rows == [3, 3, 1, 1, 1, 3]
    watched = WatchedVocoder(vocoder_model, num_slots=4)
    expected = decoded(watched, 2)
    assert [rows for rows, _ in watched.batches] == [3, 1, 1, 1, 3]
    for name in codes:
        assert np.array_equal(join(found[name]), join(expected[name]))


def test_samples_that_do_not_reach_the_host_are_decoded_again(
    vocoder_model: Qwen3OmniMoeCode2Wav, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = iter(range(100))

    def failing(pcm: torch.Tensor) -> torch.Tensor:
        if next(num_calls) == 1:
            raise ERRORS[0]
        return to_int16(pcm)

    monkeypatch.setattr(decoding, "to_int16", failing)
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=2))
    codes = {name: random_codes(6, ord(name)) for name in "ab"}
    for name in codes:
        engine.open(name)
        engine.push(name, codes[name][:2], last=False)
        engine.push(name, codes[name][2:], last=True)
    for name, audios in run(engine).items():
        assert_same_sound(join(audios), whole_decode(vocoder_model, codes[name]))


def test_a_cancel_amid_a_failure_frees_the_slot(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine: DecoderEngine[Slot]

    def fails(codes: torch.Tensor) -> bool:
        engine.cancel("a")
        return len(codes) > 1

    vocoder = FailingVocoder(vocoder_model, "after", ERRORS[1], fails)
    engine = DecoderEngine(vocoder)
    codes = random_codes(4)
    for name in "ab":
        engine.open(name)
        engine.push(name, codes, last=True)
    ((name, audios),) = run(engine).items()
    assert name == "b"
    assert_same_sound(join(audios), whole_decode(vocoder_model, codes))
    assert vocoder.num_rows == [2, 1]
    assert vocoder.num_free == 4


def test_what_an_attempt_took_is_free_before_the_next(
    vocoder_model: Qwen3OmniMoeCode2Wav, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that lived on would keep every tensor of its frames."""
    monkeypatch.setattr(decoding.logger, "disabled", True)  # pytest keeps what is logged
    held: list[weakref.ref[torch.Tensor]] = []

    class Greedy(StreamingVocoder):
        def decode(self, pieces: Sequence[StreamPiece[Slot]]) -> Decoded:
            assert all(tensor() is None for tensor in held)
            large = torch.zeros(1000)
            held.append(weakref.ref(large))
            if len(pieces) > 1:
                raise torch.OutOfMemoryError("injected")
            return super().decode(pieces)

    engine = DecoderEngine(Greedy(vocoder_model, num_slots=2))
    for name in "ab":
        engine.open(name)
        engine.push(name, random_codes(2), last=True)
    assert run(engine).keys() == {"a", "b"}
    assert len(held) == 3


def test_long_chunks_are_decoded_in_pieces(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = WatchedVocoder(vocoder_model, num_slots=3)
    engine = DecoderEngine(vocoder, Limits(piece_frames=4, batch_frames=8))
    codes = {name: random_codes(10, seed) for seed, name in enumerate("abc")}
    for name in codes:
        engine.open(name)
        engine.push(name, codes[name], last=True)
    answers = run(engine)
    assert {name: len(audios) for name, audios in answers.items()} == dict.fromkeys("abc", 1)
    assert max(rows * frames for rows, frames in vocoder.batches) == 8
    for name, (audio,) in answers.items():
        assert np.array_equal(audio.frames, codes[name])
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
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=1))
    engine.open("a")
    with pytest.raises(ValueError, match=message):
        engine.push("a", codes, last=False)


def test_frames_of_no_request_are_refused(vocoder_model: Qwen3OmniMoeCode2Wav) -> None:
    engine = DecoderEngine(StreamingVocoder(vocoder_model, num_slots=1))
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
    DecoderEngine(vocoder).warm_up()
    assert vocoder.num_free == 2


def test_more_slots_than_memory_are_refused_before_anything_loads(
    vocoder_model: Qwen3OmniMoeCode2Wav, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"code2wav_config": vocoder_model.config.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(config))  # and no weights
    sizes = StreamingVocoder.memory(str(tmp_path), torch.float32, 3)
    free = sum(sizes.values())
    monkeypatch.setattr(starting, "free_bytes", lambda device: free)
    with pytest.raises(DoesNotFit, match=r"stage singer does not fit on cpu: .* lower num_slots"):
        StreamingVocoder.engine(str(tmp_path), "singer", DecoderOptions(num_slots=4, device="cpu"))
    options = DecoderOptions(num_slots=3, device="cpu", load_format="dummy")
    StreamingVocoder.engine(str(tmp_path), "singer", options)
