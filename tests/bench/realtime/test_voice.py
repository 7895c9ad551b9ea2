"""The turns that a session of `omnistage bench realtime` speaks."""

from pathlib import Path

import numpy as np
import pytest
from support.media.sounds import tone, wav_of

from omnistage.bench.realtime.voice import RATE_HZ, Script, read, silence, synthesized


def test_a_recording_is_read_at_the_rate_of_sessions(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    stereo = np.stack([tone(0.5, 16_000)] * 2, axis=1)
    file.write_bytes(wav_of(stereo, 16_000))
    samples = read(file)
    assert samples.dtype == np.int16
    assert len(samples) == pytest.approx(0.5 * RATE_HZ, rel=0.01)
    assert np.abs(samples).max() > 5000


@pytest.mark.parametrize("content", [b"", b"no audio", wav_of(tone(0.05))])
def test_a_file_without_speech_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.wav"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"--audio: .*broken\.wav"):
        read(file)


def test_turns_are_the_same_for_a_seed_and_differ_between_sessions() -> None:
    script = Script(3, seed=1, speech_s=0.3)
    first, again, other = script.turns(0), script.turns(0), script.turns(1)
    assert all(np.array_equal(a.samples, b.samples) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0].samples, other[0].samples)


def test_a_share_of_turns_pauses_in_the_middle() -> None:
    speech = synthesized(0.4, seed=1)
    script = Script(400, 1, recordings=[speech], false_ends=0.3, pause_s=0.25)
    turns = script.turns(0)
    paused = [turn for turn in turns if len(turn.samples) > len(speech)]
    assert 90 <= len(paused) <= 150
    half, pause = len(speech) // 2, len(silence(0.25))
    assert not paused[0].samples[half : half + pause].any()
    assert paused[0].seconds == pytest.approx(0.65)


def test_the_first_turn_interrupts_nothing() -> None:
    turns = Script(5, 1, recordings=[silence(0.2)], interruptions=1).turns(0)
    assert [turn.interrupts for turn in turns] == [False, True, True, True, True]
