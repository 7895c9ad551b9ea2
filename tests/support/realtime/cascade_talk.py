"""A session over a cascade."""

import numpy as np
from support.fakes.stages import WORDS
from support.gateway.serving import RunningGateway
from support.realtime.client import Talk, silence, tone

from omnistage.stages.messages.body import Transcribe

TEXT = "".join(WORDS)


def asked_of(gateway: RunningGateway) -> Transcribe:
    """The last body that the transcriber got."""
    body = gateway.stages.stages["transcriber"].last_request.body
    assert isinstance(body, Transcribe)
    return body


def speak(talk: Talk, seconds: float = 0.5, quiet: float = 0.8) -> None:
    sound = np.concatenate([tone(seconds), silence(quiet)])
    for piece in np.split(sound, range(480, len(sound), 480)):
        talk.append(piece)
