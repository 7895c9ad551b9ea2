"""The events of /v1/audio/speech/stream: those that clients send, and those that they get."""

from typing import Any

from omnistage.server.common.errors import ApiError
from omnistage.server.common.json_text import parse_json
from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.media.audio.encoder import file_samples_of
from omnistage.server.runtime.request import AudioOutput
from omnistage.server.tasks.speech.requests import SpeechUsage
from omnistage.server.tasks.speech.utterance import Utterance
from omnistage.stage_configs.json_types import JsonMap

MAX_EVENT = 128 << 10  # characters of an event that is no session.config


def event_of(message: JsonMap) -> JsonMap:
    """Return the event in a frame; raises ApiError."""
    text = message.get("text")
    if text is None:
        raise ApiError(400, "Events are text frames of JSON.", code="invalid_json")
    event = parse_json(text.encode())
    if len(text) > MAX_EVENT and event.get("type") != "session.config":
        message_ = f"An event has more than {MAX_EVENT} characters."
        raise ApiError(413, message_, code="request_too_large")
    return event


class SpeechEvents:
    """Sends the events of one connection; `warning` names fields without effect."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.warning = ""

    def start(self, utterance: Utterance, form: str, output: AudioOutput, first: str) -> None:
        """Send that the audio begins, with its format and the first words."""
        samples = file_samples_of(form, output.samples)
        more = {"warning": self.warning} if self.warning else {}
        self._send(
            utterance,
            "audio.start",
            sentence_index=0,
            sentence_text=first,
            format=form,
            sample_rate=samples.rate_hz,
            channels=samples.num_channels,
            **more,
        )

    def audio(self, utterance: Utterance, data: bytes) -> None:
        """Send encoded audio."""
        if utterance.voice.is_binary:
            self.outbox.put(data)
        else:
            self._send(utterance, "audio.chunk", sentence_index=0, audio_b64=data)

    def audio_done(self, utterance: Utterance, num_bytes: int, usage: SpeechUsage) -> None:
        """Send that all audio has been sent."""
        self._send(
            utterance,
            "audio.done",
            sentence_index=0,
            total_bytes=num_bytes,
            error=False,
            usage=usage.to_dict(),
        )

    def done(self, utterance: Utterance, status: str, total_sentences: int = 1) -> None:
        """Send how an answer has ended."""
        utterance.is_over = True
        self._send(utterance, "session.done", total_sentences=total_sentences, status=status)

    def error(self, error: ApiError, utterance: Utterance | None = None) -> None:
        """Send a failure, of one answer or of none."""
        about = {} if utterance is None else {"utterance_index": utterance.number}
        event = {"type": "error", **about, "message": error.message, **error.envelope}
        self.outbox.tell(event)

    def _send(self, utterance: Utterance, kind: str, **more: Any) -> None:
        self.outbox.tell({"type": kind, "utterance_index": utterance.number, **more})
