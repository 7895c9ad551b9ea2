"""A session that detects turns."""

from typing import Any

import numpy as np
from support.realtime.client import Talk, silence, tone


def detect(talk: Talk, kind: str = "server_vad", **fields: Any) -> None:
    talk.update(audio={"input": {"turn_detection": {"type": kind, **fields}}})


def speak(talk: Talk, seconds: float = 0.5, quiet: float = 0.8) -> None:
    """In pieces of 20 ms, as fast as they are taken."""
    sound = np.concatenate([tone(seconds), silence(quiet)])
    for piece in np.split(sound, range(480, len(sound), 480)):
        talk.append(piece)
