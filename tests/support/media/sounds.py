"""Sound files of tests."""

import base64
import io
import wave

import numpy as np
import numpy.typing as npt


def tone(seconds: float = 1.0, rate_hz: int = 24_000) -> npt.NDArray[np.int16]:
    """A loud one of 440 Hz."""
    times = np.arange(int(seconds * rate_hz)) / rate_hz
    return (8000 * np.sin(2 * np.pi * 440 * times)).astype(np.int16)


def wav_of(samples: npt.NDArray[np.int16], rate_hz: int = 24_000) -> bytes:
    """A file; `samples` is [n] of mono, or [n, channels]."""
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((channels, 2, rate_hz, 0, "NONE", ""))
        sound.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def data_url(data: bytes) -> str:
    """As clients send a file in JSON."""
    return f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
