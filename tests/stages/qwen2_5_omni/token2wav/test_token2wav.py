"""token2wav as a decoder: whole answers are transformers', and streams are the same beside any."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.kernels import relative_error
from support.models.token2wav import (
    MelAsSamples,
    asked,
    make_decoder,
    make_speakers,
    make_token2wav,
    random_codes,
    speak,
)

from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.token2wav import dit_blocks
from omnistage.stages.qwen2_5_omni.token2wav.flow_schedule import Schedule
from omnistage.stages.qwen2_5_omni.token2wav.token2wav import AnswerStream, Token2Wav
from omnistage.stages.vocoder import engine as decoding
from omnistage.stages.vocoder.decoder import Decoded, StreamPiece
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.streams import DecodedAudio, DecodeFailed, Limits

Codes = npt.NDArray[np.int32]

WHOLE = Schedule.whole(window=3, context=34)
RAMP = Schedule.streamed((1, 2), ahead=1, context=20)


# Against the reference


@torch.inference_mode()
def reference(codes: Codes, seed: int, speaker: str) -> torch.Tensor:
    model, voice = make_token2wav(), make_speakers()[speaker]
    torch.manual_seed(seed)
    samples: torch.Tensor = model(torch.from_numpy(codes.T).long(), voice["cond"], voice["ref_mel"])
    return samples


@pytest.mark.parametrize(
    ("seed", "speaker", "num_codes"),
    [(0, "Chelsie", 43), (1, "Ethan", 24), (2, "Chelsie", 5), (3, "ethan", 36)],
)
def test_a_whole_answer_is_the_reference_s(seed: int, speaker: str, num_codes: int) -> None:
    codes = random_codes(num_codes, seed)
    expected = reference(codes, seed, speaker.capitalize())
    found = speak(make_decoder(WHOLE), codes, asked(seed, speaker), [3, 4])
    assert found.shape == expected.shape == (480 * num_codes,)
    assert expected.abs().max() > 0.1
    assert (found - expected).abs().max() < 1e-5


def test_another_seed_and_another_speaker_sound_otherwise() -> None:
    decoder, codes = make_decoder(RAMP, is_deep=False), random_codes(10)
    one = speak(decoder, codes, asked(0, "Chelsie"))
    for other in (asked(1, "Chelsie"), asked(0, "Ethan")):
        assert relative_error(speak(decoder, codes, other), one) > 0.01


@cache
def mel(schedule: Schedule, coupling: float, is_deep: bool = True) -> torch.Tensor:
    """The mel spectrogram that an answer's samples are made of, in float64."""
    decoder = make_decoder(schedule, coupling=coupling, dtype=torch.float64, is_deep=is_deep)
    decoder._vocoder = MelAsSamples()  # type: ignore[assignment]
    return speak(decoder, random_codes(55, 1), asked(2))


@pytest.mark.parametrize(
    ("coupling", "bounds"), [(1, (2e-2, 5e-4, 2e-5)), (8, (4e-2, 3e-3, 1e-4))], ids=str
)
def test_each_block_ahead_divides_the_error_of_a_stream(
    coupling: float, bounds: Sequence[float]
) -> None:
    streams = [mel(Schedule.streamed((2,), ahead, 20), coupling) for ahead in range(3)]
    errors = [relative_error(stream, mel(WHOLE, coupling)) for stream in streams]
    assert all(error < bound for error, bound in zip(errors, bounds, strict=True)), errors
    assert all(10 * after < before for before, after in pairwise(errors)), errors
    assert errors[-1] > 0


def test_a_stream_that_sees_all_blocks_ahead_is_the_whole_bit_for_bit() -> None:
    """Nothing of the past is approximated."""
    whole = mel(WHOLE, 8, is_deep=False)
    assert torch.equal(mel(Schedule.streamed((1,), 4, 20), 8, is_deep=False), whole)
    assert not torch.equal(mel(Schedule.streamed((1,), 1, 20), 8, is_deep=False), whole)


# Bit for bit


@pytest.mark.parametrize("num_codes", [47, 48, 36])
def test_a_stream_does_not_depend_on_how_its_codes_arrive(num_codes: int) -> None:
    """Bit for bit, and whether the end is told with the last code or after it."""
    decoder, codes = make_decoder(RAMP, is_deep=False, coupling=8), random_codes(num_codes)
    expected = speak(decoder, codes, asked(3))
    for arrivals in ((), (23, 25), range(12, num_codes, 12), range(1, num_codes)):
        found = speak(decoder, codes, asked(3), arrivals, last_is_late=True)
        assert torch.equal(found, expected)
    assert torch.equal(speak(decoder, codes, asked(3), range(1, num_codes)), expected)


class Watched(Token2Wav):
    """Notes what each step has, and fails for streams of one seed amid their first chunk."""

    guilty_seed: int | None = None

    def decode(self, pieces: Sequence[StreamPiece[AnswerStream]]) -> Decoded:
        solutions = [piece.state.now.solution for piece in pieces]
        self.steps.append([0 if one is None else one.num_evaluated for one in solutions])
        decoded = super().decode(pieces)
        for piece, solution in zip(pieces, solutions, strict=True):
            is_amid = solution is not None and solution.num_evaluated == 5
            if is_amid and piece.state.request.seed == self.guilty_seed:
                raise RuntimeError("injected")
        return decoded

    @property
    def steps(self) -> list[list[int]]:
        """The evaluations that each stream of a step had behind it."""
        return self.__dict__.setdefault("_steps", [])  # type: ignore[no-any-return]


@pytest.fixture
def floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's samples are not rounded."""
    monkeypatch.setattr(decoding, "to_int16", lambda pcm: pcm)


def make_engine(num_slots: int) -> tuple[Watched, DecoderEngine[AnswerStream]]:
    decoder = make_decoder(RAMP, num_slots, is_deep=False, coupling=8, make=Watched)
    assert isinstance(decoder, Watched)
    return decoder, DecoderEngine(decoder, Limits(1 << 20, 1 << 30))


def joined(answers: Sequence[DecodedAudio | DecodeFailed], sounds: dict[str, list[Any]]) -> None:
    for answer in answers:
        assert isinstance(answer, DecodedAudio)
        sounds[answer.request_id].append(answer.pcm)


def alone(asking: Mapping[str, Request], codes: Mapping[str, Codes]) -> dict[str, torch.Tensor]:
    decoder = make_decoder(RAMP, is_deep=False, coupling=8)
    return {name: speak(decoder, codes[name], request) for name, request in asking.items()}


ASKING = {f"r{seed}": asked(seed, ("Chelsie", "Ethan")[seed % 2]) for seed in range(12)}
CODES = {name: random_codes(7 + 4 * seed, seed) for seed, name in enumerate(ASKING)}


@pytest.mark.usefixtures("floats")
def test_beside_eleven_others_a_stream_is_the_same_bit_for_bit() -> None:
    """They join and leave between evaluations, and codes come in pieces of any size."""
    decoder, engine = make_engine(num_slots=12)
    random = np.random.default_rng(0)
    parts = {
        name: np.array_split(codes, 1 + number % 5)
        for number, (name, codes) in enumerate(CODES.items())
    }
    opened: set[str] = set()

    def arrive(chance: float) -> None:
        for name in [name for name in parts if random.random() < chance]:
            if name not in opened:
                engine.open(name, request=ASKING[name])
                opened.add(name)
            engine.push(name, parts[name].pop(0), last=not parts[name])
            if not parts[name]:
                del parts[name]

    decode = decoder.decode

    def arriving(pieces: Sequence[StreamPiece[AnswerStream]]) -> Decoded:
        arrive(chance=0.2)
        return decode(pieces)

    decoder.decode = arriving  # type: ignore[method-assign]
    sounds: dict[str, list[Any]] = defaultdict(list)
    while parts or engine.num_streams:
        arrive(chance=0.3)
        joined(engine.step(), sounds)
    assert max(map(len, decoder.steps)) > 4
    assert any(len(set(step)) > 2 for step in decoder.steps)
    for name, expected in alone(ASKING, CODES).items():
        assert np.array_equal(np.concatenate(sounds[name]), expected.numpy()), name
    engine.step()
    assert decoder.num_free == 12


@pytest.mark.usefixtures("floats")
def test_small_forwards_are_the_same_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sounds: list[dict[str, list[Any]]] = []
    for limit in (512, 5):
        monkeypatch.setattr(dit_blocks, "MAX_BLOCKS", limit)
        _, engine = make_engine(num_slots=4)
        for name in ("r1", "r4", "r7"):
            engine.open(name, request=ASKING[name])
            engine.push(name, CODES[name], last=True)
        sounds.append(defaultdict(list))
        while engine.num_streams:
            joined(engine.step(), sounds[-1])
    for name in ("r1", "r4", "r7"):
        assert np.array_equal(*(np.concatenate(one[name]) for one in sounds))


# One among others


@pytest.mark.usefixtures("floats")
def test_a_failure_amid_a_chunk_is_one_stream_s_alone() -> None:
    decoder, engine = make_engine(num_slots=3)
    decoder.guilty_seed = 5
    sounds: dict[str, list[Any]] = defaultdict(list)
    failed = []
    names = ("r3", "r5", "r6")
    for name in names:
        engine.open(name, request=ASKING[name])
        engine.push(name, CODES[name], last=True)
    while engine.num_streams:
        answers = engine.step()
        failed += [answer for answer in answers if isinstance(answer, DecodeFailed)]
        joined([answer for answer in answers if isinstance(answer, DecodedAudio)], sounds)
    assert failed == [DecodeFailed("r5")]
    assert [*sounds] == ["r3", "r6"]
    for name, expected in alone({name: ASKING[name] for name in sounds}, CODES).items():
        assert np.array_equal(np.concatenate(sounds[name]), expected.numpy())
    engine.step()
    assert decoder.num_free == 3


@pytest.mark.usefixtures("floats")
def test_a_cancel_amid_a_chunk_frees_its_slot_for_a_stream_that_begins_anew() -> None:
    decoder, engine = make_engine(num_slots=2)
    sounds: dict[str, list[Any]] = defaultdict(list)
    for name in ("r3", "r4", "r5"):
        engine.open(name, request=ASKING[name])
        engine.push(name, CODES[name], last=True)
    cancel = iter(range(1000))
    decode = decoder.decode

    def cancelling(pieces: Sequence[StreamPiece[AnswerStream]]) -> Decoded:
        if next(cancel) == 5:
            engine.cancel("r4")
        return decode(pieces)

    decoder.decode = cancelling  # type: ignore[method-assign]
    while engine.num_streams:
        joined(engine.step(), sounds)
    assert sorted(sounds) == ["r3", "r5"]
    for name, expected in alone({name: ASKING[name] for name in sounds}, CODES).items():
        assert np.array_equal(np.concatenate(sounds[name]), expected.numpy())
    engine.step()
    assert decoder.num_free == 2


def test_codes_without_an_embedding_are_refused() -> None:
    decoder = make_decoder(RAMP, is_deep=False)
    decoder.check(np.array([[0], [128]], np.int32))
    for wrong in ([[129]], [[-1]], [[1, 2]], [1]):
        with pytest.raises(ValueError, match="code"):
            decoder.check(np.array(wrong, np.int32))


def test_an_answer_longer_than_there_are_positions_fails() -> None:
    decoder = make_decoder(RAMP, is_deep=False)
    cut = decoder.dit._cos[:3]
    decoder.dit._cos = cut
    assert len(speak(decoder, random_codes(36), asked())) == 36 * 480
    with pytest.raises(ValueError, match="more than 3 blocks"):
        speak(decoder, random_codes(37), asked())


def test_warming_up_leaves_every_slot_free() -> None:
    decoder = make_decoder(RAMP, 2, is_deep=False)
    decoder.capture()
    DecoderEngine(decoder).warm_up()
    assert decoder.num_free == 2


def test_first_samples_come_with_the_third_block() -> None:
    """36 codes give 28 frames: 2 blocks without the 20 by which the vocoder is behind."""
    decoder = make_decoder(Schedule.streamed((2, 3), ahead=1, context=20), is_deep=False)
    engine = DecoderEngine(decoder)
    engine.open("one", request=asked())
    codes = random_codes(36)
    lengths = []
    for part in (codes[:35], codes[35:]):
        engine.push("one", part, last=False)
        (answer,) = engine.step()
        assert isinstance(answer, DecodedAudio)
        lengths.append(len(answer.pcm))
    assert lengths == [0, 28 * 240]
