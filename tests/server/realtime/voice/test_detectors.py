"""What is taken for speech: by loudness, and by Silero's model as its own package does."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.gateway.serving import RunningGateway
from support.realtime.client import silence, speech_like, talking, tone

from omnistage.server.realtime.voice.detectors import (
    SPEECH_DB,
    WINDOW_FRAMES,
    EnergyDetector,
    Probabilities,
)
from omnistage.server.realtime.voice.formats import Samples
from omnistage.server.realtime.voice.listening import FRAME_SAMPLES, Ear, Frames
from omnistage.server.realtime.voice.silero import SileroPool, silero_file

needs_silero = pytest.mark.skipif(
    silero_file() is None, reason="the extra omnistage[realtime] is not installed"
)


def frames_of(samples: Samples) -> Frames:
    return Ear("audio/pcm").add(samples.tobytes())


def noise(seconds: float, level: float) -> Samples:
    drawn = np.random.default_rng(0).standard_normal(round(24_000 * seconds))
    samples: Samples = (drawn * level).astype(np.int16)
    return samples


async def test_what_is_louder_than_the_room_is_speech() -> None:
    sounds = [noise(2, 30), tone(1) + noise(1, 30), noise(2, 30)]
    likely = await EnergyDetector().probabilities(frames_of(np.concatenate(sounds)))
    num = len(likely) // 5
    assert (likely[: 2 * num - 1] < 0.35).all()
    assert (likely[2 * num + 1 : 3 * num - 1] > 0.5).all()
    assert (likely[3 * num + 1 :] < 0.35).all()


async def test_a_noise_that_stays_becomes_the_room() -> None:
    likely = await EnergyDetector().probabilities(frames_of(noise(12, 2000)))
    assert likely[5] > 0.5
    assert (likely[-30:] < 0.35).all()


async def test_the_floor_is_the_tenth_percentile_of_the_last_five_seconds() -> None:
    decibels = np.random.default_rng(3).uniform(-50, 0, 3 * WINDOW_FRAMES)
    loud = np.repeat(10 ** (decibels[:, None] / 20), FRAME_SAMPLES, axis=1).astype(np.float32)
    detector = EnergyDetector()
    for end in range(WINDOW_FRAMES, 3 * WINDOW_FRAMES + 1, WINDOW_FRAMES):
        judged = await detector.probabilities(loud[end - WINDOW_FRAMES : end])
        floor = np.percentile(decibels[end - WINDOW_FRAMES : end], 10)
        expected = np.clip((decibels[end - 1] - floor) / SPEECH_DB, 0, 1)
        assert judged[-1] == pytest.approx(expected, abs=1e-4)


async def test_digital_silence_is_never_speech() -> None:
    likely = await EnergyDetector().probabilities(frames_of(silence(3)))
    assert (likely == 0).all()


@needs_silero
async def test_sessions_in_one_batch_are_judged_as_alone() -> None:
    path = silero_file()
    assert path is not None
    together, alone = SileroPool(path), SileroPool(path)
    given = [frames_of(noise(1, 400 * (1 + n)) + tone(1)) for n in range(4)]
    given[2] = given[2][:7]
    detectors = [together.detector() for _ in given]
    batched = await asyncio.gather(
        *(one.probabilities(frames) for one, frames in zip(detectors, given, strict=True))
    )
    for frames, made in zip(given, batched, strict=True):
        detector = alone.detector()
        one_by_one = [await detector.probabilities(frames[n : n + 1]) for n in range(len(frames))]
        assert np.allclose(np.concatenate(one_by_one), made, atol=1e-5)
    together.close()
    alone.close()


# In processes of their own: the package imports torch.
PACKAGE = """
import sys, numpy as np, torch
from silero_vad import load_silero_vad
model = load_silero_vad(onnx=True)
made = [model(torch.from_numpy(frame), 16000).item() for frame in np.load(sys.argv[1])]
np.save(sys.argv[2], np.array(made, np.float32))
"""
OURS = """
import sys
from omnistage.server.realtime.voice.silero import SileroPool, silero_file
SileroPool(silero_file())
assert "silero_vad" not in sys.modules and "torch" not in sys.modules
"""


@needs_silero
def test_silero_answers_as_its_own_package(tmp_path: Path) -> None:
    frames = frames_of(speech_like())
    given, made = tmp_path / "given.npy", tmp_path / "made.npy"
    np.save(given, frames)
    subprocess.run([sys.executable, "-c", PACKAGE, given, made], check=True, capture_output=True)
    path = silero_file()
    assert path is not None
    pool = SileroPool(path)

    async def judged() -> Probabilities:
        return await pool.detector().probabilities(frames)

    likely = asyncio.run(judged())
    pool.close()
    assert np.allclose(likely, np.load(made), atol=1e-4)
    assert likely.max() > 0.5 > likely.min()


@needs_silero
def test_the_model_is_loaded_without_torch_and_reports_nothing(tmp_path: Path) -> None:
    """As it is imported, onnxruntime would write an id of this machine into its user's folder."""
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", OURS], check=True, env=environment)
    assert not list(tmp_path.rglob("*onnxruntime*"))


@needs_silero
def test_a_session_tells_turns_by_the_model(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        for piece in np.array_split(np.concatenate([speech_like(), silence(1)]), 200):
            talk.append(piece)
        started = talk.until("input_audio_buffer.speech_started")
        stopped = talk.until("input_audio_buffer.speech_stopped")
        talk.until("response.done")
    assert started["audio_start_ms"] == pytest.approx(1000 - 300, abs=100)
    assert stopped["audio_end_ms"] == pytest.approx(2000 + 500, abs=200)


def test_frames_have_the_size_that_the_model_takes() -> None:
    assert frames_of(tone(0.1)).shape[1] == FRAME_SAMPLES == 512
