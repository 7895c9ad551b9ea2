"""Judges of turns: Whisper's features, an operator's ONNX file, and the turns that it ends."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support.models.onnx_files import model
from support.realtime.client import silence, tone
from transformers import WhisperFeatureExtractor

from omnistage.server.realtime.audio_settings import AudioInput, SemanticVad, ServerVad
from omnistage.server.realtime.hearing import Hearing
from omnistage.server.realtime.voice.detectors import EnergyDetector
from omnistage.server.realtime.voice.judge import TurnJudge
from omnistage.server.realtime.voice.log_mel import Floats, log_mel
from omnistage.server.realtime.voice.turns import TurnChange, TurnPaused, TurnResumed, TurnStopped

needs_onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs onnxruntime")

MELS, SAMPLES = (1, 80, 800), (1, 128_000)


def noise(seconds: float, seed: int = 0) -> Floats:
    drawn = np.random.default_rng(seed).standard_normal(round(16_000 * seconds))
    return (0.1 * drawn).astype(np.float32)


@pytest.mark.parametrize("seconds", [8, 3.5])
def test_log_mels_are_whispers(seconds: float) -> None:
    """With zeros before shorter audio."""
    samples = np.zeros(128_000, np.float32)
    given = noise(seconds) * np.sin(np.arange(round(16_000 * seconds)) / 300)
    samples[-len(given) :] = given
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=8)
    wanted = extractor(samples, sampling_rate=16_000, do_normalize=True, return_tensors="np")
    made = log_mel(samples)
    assert made.shape == (80, 800)
    assert np.abs(made - wanted["input_features"][0]).max() < 1e-3


@needs_onnx
@pytest.mark.parametrize("shape", [MELS, SAMPLES])
async def test_a_file_hears_the_end_of_a_turn(tmp_path: Path, shape: tuple[int, ...]) -> None:
    file = tmp_path / "a.onnx"
    file.write_bytes(model(shape, "ReduceMean", "Sigmoid"))
    judge = TurnJudge(file)
    assert judge.num_samples == 128_000
    loud = np.full(128_000, 0.5, np.float32)
    if shape == SAMPLES:
        assert await judge.is_done(np.concatenate([-loud, loud]))
        assert not await judge.is_done(np.concatenate([loud, -loud]))
        assert not await judge.is_done(-loud[:100])
    else:
        assert not await judge.is_done(np.zeros(100, np.float32))
    judge.close()


@needs_onnx
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no model", "is not an ONNX model"),
        (model((1, 40, 800), "ReduceMean", "Sigmoid"), "allowed is one input"),
        (model((128_000,), "ReduceMean", "Sigmoid"), "allowed is one input"),
        (model(MELS, "ReduceMean"), "is no probability"),
        (model(SAMPLES, "Sigmoid"), "allowed is one number"),
    ],
)
def test_what_is_no_judge_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "a.onnx"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        TurnJudge(file)


class Decided:
    """A judge whose answers are known; what it was asked is kept."""

    num_samples = 16_000

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[Floats] = []

    async def is_done(self, samples: Floats) -> bool:
        self.asked.append(samples)
        return self.answers.pop(0)


async def heard(judge: Decided | None, detection: SemanticVad | ServerVad) -> list[TurnChange]:
    """A second of speech, a pause of 300 ms, half a second of speech, and 3 s of silence."""
    hearing = Hearing(EnergyDetector, judge)
    hearing.configure(AudioInput(turn_detection=detection))
    sound = np.concatenate([silence(1), tone(1), silence(0.3), tone(0.5), silence(3)])
    changes = []
    for piece in np.split(sound, range(480, len(sound), 480)):
        changes += await hearing.add(piece.astype("<i2").tobytes())
    return changes


def ends(changes: list[TurnChange]) -> list[float]:
    return [one.at_ms for one in changes if isinstance(one, TurnStopped)]


async def test_a_turn_ends_at_the_first_pause_that_the_judge_takes_for_its_end() -> None:
    judge = Decided(False, True)
    changes = await heard(judge, SemanticVad(eagerness="high"))
    assert [type(one) for one in changes[1:]] == [TurnPaused, TurnResumed, TurnPaused, TurnStopped]
    assert ends(changes) == pytest.approx([1000 + 1000 + 300 + 500 + 200], abs=80)
    assert [len(one) for one in judge.asked] == [16_000 // 512 * 512] * 2


async def test_a_judge_that_doubts_waits_as_eagerness_says() -> None:
    changes = await heard(Decided(False, False), SemanticVad(eagerness="high"))
    assert ends(changes) == pytest.approx([2800 + 2000], abs=80)


async def test_the_judge_hears_the_turn_alone() -> None:
    judge = Decided(True, True)
    judge.num_samples = 128_000
    await heard(judge, SemanticVad(eagerness="low"))
    first, second = (len(one) / 16 for one in judge.asked)
    assert first == pytest.approx(1000 + 200 + 300, abs=120)
    assert second == pytest.approx(500 + 200 + 300, abs=120)


@pytest.mark.parametrize(
    ("detection", "waits_ms"), [(ServerVad(), 500), (SemanticVad(eagerness="high"), 300)]
)
async def test_silence_decides_where_nobody_judges(
    detection: SemanticVad | ServerVad, waits_ms: float
) -> None:
    judge = None if isinstance(detection, SemanticVad) else Decided()
    changes = await heard(judge, detection)
    assert ends(changes)[-1] == pytest.approx(2800 + waits_ms, abs=80)
