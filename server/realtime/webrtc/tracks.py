"""Audio tracks of a call: frames out by the clock, frames in as samples of a session."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from fractions import Fraction

import numpy as np
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame
from av.audio.resampler import AudioResampler

from omnistage.server.realtime.webrtc.outgoing import RATE_HZ

FRAME_S = 0.02
FRAME_SAMPLES = round(FRAME_S * RATE_HZ)
LATE_S = 0.5  # behind the clock: what was missed is skipped, not sent in a burst


class PacedTrack(MediaStreamTrack):  # type: ignore[misc]
    """Sends a frame every 20 ms: mono, 24 kHz."""

    kind = "audio"

    def __init__(self, take: Callable[[int], bytes]) -> None:
        super().__init__()
        self._take = take  # returns so many samples
        self._start: float | None = None
        self._number = 0  # of the next frame

    async def recv(self) -> AudioFrame:
        """Return the next frame, when it is due."""
        now = asyncio.get_running_loop().time()
        if self._start is None:
            self._start = now
        due = self._start + self._number * FRAME_S
        if now - due > LATE_S:
            self._number = int((now - self._start) / FRAME_S)
        else:
            await asyncio.sleep(max(0.0, due - now))
        samples = np.frombuffer(self._take(FRAME_SAMPLES), "<i2")
        frame = AudioFrame.from_ndarray(samples[None], "s16", "mono")
        frame.sample_rate, frame.time_base = RATE_HZ, Fraction(1, RATE_HZ)
        frame.pts = self._number * FRAME_SAMPLES
        self._number += 1
        return frame


async def samples_of(track: MediaStreamTrack) -> AsyncGenerator[bytes, None]:
    """Yield the audio of a client's track as it comes: s16le, mono, 24 kHz."""
    resampler = AudioResampler(format="s16", layout="mono", rate=RATE_HZ)
    while True:
        try:
            frame = await track.recv()
        except MediaStreamError:
            return
        for made in resampler.resample(frame):
            yield made.to_ndarray().astype("<i2").tobytes()
