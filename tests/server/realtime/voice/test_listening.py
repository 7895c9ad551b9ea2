"""The input buffer's clock and cuts, and the frames of a detector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.server.common.errors import ApiError
from omnistage.server.realtime.voice import listening
from omnistage.server.realtime.voice.listening import FRAME_SAMPLES, Ear, InputBuffer


def ms_of(num_ms: float) -> bytes:
    return bytes(round(48 * num_ms) // 2 * 2)


def test_times_are_those_of_all_that_was_appended() -> None:
    buffer = InputBuffer()
    buffer.append(ms_of(500))
    assert (buffer.begin_ms, buffer.end_ms, buffer.ms) == (0, 500, 500)
    assert buffer.take(100, 400).ms == 300
    assert (buffer.begin_ms, buffer.end_ms) == (400, 500)
    buffer.clear()
    assert (buffer.begin_ms, buffer.end_ms, buffer.ms) == (500, 500, 0)
    buffer.append(ms_of(20))
    assert buffer.take().ms == 20
    assert buffer.end_ms == 520


def test_another_format_counts_on() -> None:
    buffer = InputBuffer()
    buffer.append(ms_of(100))
    buffer.change_format("audio/pcmu")
    assert buffer.ms == 0
    buffer.append(bytes(800))
    assert buffer.end_ms == 200
    sound = buffer.take()
    assert (sound.form, sound.ms) == ("audio/pcmu", 100)


@pytest.mark.parametrize(("form", "data"), [("audio/pcm", b"123")])
def test_part_of_a_sample_is_refused(form: str, data: bytes) -> None:
    with pytest.raises(ApiError, match="whole samples"):
        InputBuffer(form).append(data)


def test_a_full_buffer_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_BUFFER_S", 1.0)
    buffer = InputBuffer()
    buffer.append(ms_of(1000))
    with pytest.raises(ApiError) as refused:
        buffer.append(b"\0\0")
    assert refused.value.code == "input_audio_buffer_full"
    buffer.take()
    buffer.append(b"\0\0")


cuts = st.lists(st.tuples(st.integers(0, 900), st.floats(-100, 2000), st.floats(-100, 2000)))


@given(cuts)
def test_no_sample_is_taken_twice_and_the_clock_never_goes_back(
    steps: list[tuple[int, float, float]],
) -> None:
    buffer, taken, appended, before = InputBuffer(), 0, 0, 0.0
    for num_samples, start, end in steps:
        buffer.append(bytes(2 * num_samples))
        appended += num_samples
        taken += len(buffer.take(start, end).data) // 2
        assert taken <= appended
        assert buffer.begin_ms >= before
        before = buffer.begin_ms
        assert buffer.end_ms == pytest.approx(appended / 24)


@pytest.mark.parametrize("form", ["audio/pcm", "audio/pcmu", "audio/pcma"])
def test_frames_are_whole_and_none_is_lost(form: str) -> None:
    ear = Ear(form)
    sample_bytes = 2 if form == "audio/pcm" else 1
    rate_hz = 24_000 if form == "audio/pcm" else 8000
    frames = [ear.add(bytes(sample_bytes * rate_hz // 100)) for _ in range(100)]
    assert {one.shape[1] for one in frames} == {FRAME_SAMPLES}
    assert abs(sum(map(len, frames)) - 16_000 // FRAME_SAMPLES) <= 1
    assert frames[0].dtype == np.float32
