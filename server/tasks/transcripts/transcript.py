"""A transcript in OpenAI's shapes: events while it comes, a body when it is whole."""

import zlib
from dataclasses import dataclass, field

from omnistage.server.common.errors import ApiError
from omnistage.server.media.incoming import Incoming
from omnistage.server.tasks.chat.usage import usage_of
from omnistage.server.tasks.transcripts.transcription_fields import (
    AudioRequest,
    TranscriptionRequest,
)
from omnistage.stage_configs.json_types import Json, JsonMap

Body = Json


@dataclass(slots=True)
class Transcript:
    """The text of one answer as far as it has come, and how long its audio is."""

    asked: AudioRequest
    media: Incoming | None = None  # the audio, once it is here
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Body] = field(default_factory=list)
    usage: JsonMap = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """How long the audio is, once a stage has it."""
        return 0.0 if self.media is None else sum(self.media.seconds)

    @property
    def has_logprobs(self) -> bool:
        """Returns whether the client asked for them."""
        return isinstance(self.asked, TranscriptionRequest) and bool(self.asked.include)

    @property
    def needs_logprobs(self) -> bool:
        """Returns whether the answer is made of them."""
        return self.has_logprobs or self.asked.response_format == "verbose_json"

    def add(self, chunk: JsonMap) -> Body | None:
        """Add one chunk of the chat; its event, if it has text.

        Raises ApiError for a transcript that does not fit into the context.
        """
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            entries = (choice.get("logprobs") or {}).get("content") or ()
            new = [{name: one[name] for name in ("token", "bytes", "logprob")} for one in entries]
            self.logprobs += new
            reason = choice.get("finish_reason")
            token_ids = choice.get("token_ids") or ()
            self.token_ids += token_ids[:-1] if reason == "stop" else token_ids
            if reason == "length" and self.asked.max_completion_tokens is None:
                message = "The transcript is longer than the model's context."
                raise ApiError(400, message, param="file", code="context_length_exceeded")
            delta = choice["delta"].get("content") or ""
            self.text += delta
            if delta:
                more = {"logprobs": new} if self.has_logprobs else {}
                return {"type": "transcript.text.delta", "delta": delta, **more}
        return None

    @property
    def done(self) -> Body:
        """The last event."""
        return {"type": "transcript.text.done", **self._json}

    @property
    def body(self) -> Body | str:
        """The whole answer in the format that was asked for."""
        match self.asked.response_format:
            case "text":
                return self.text
            case "verbose_json":
                return self._verbose
            case _:
                is_transcription = isinstance(self.asked, TranscriptionRequest)
                return self._json if is_transcription else {"text": self.text}

    @property
    def _json(self) -> Body:
        usage = usage_of(self.usage, 0)
        audio = usage["prompt_tokens_details"]["audio_tokens"]
        tokens = {
            "type": "tokens",
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_token_details": {
                "text_tokens": usage["prompt_tokens"] - audio,
                "audio_tokens": audio,
            },
        }
        more = {"logprobs": self.logprobs} if self.has_logprobs else {}
        return {"text": self.text, **more, "usage": tokens}

    @property
    def _verbose(self) -> Body:
        is_transcription = isinstance(self.asked, TranscriptionRequest)
        usage = {"type": "duration", "seconds": self.duration_s}
        return {
            "task": self.asked.task,
            "language": self.asked.text_language,
            "duration": self.duration_s,
            "text": self.text,
            "segments": [self._segment] if self.text else [],
            **({"usage": usage} if is_transcription else {}),
        }

    @property
    def _segment(self) -> Body:
        """One for all: where in the audio a word was said is not known."""
        data = self.text.encode()
        return {
            "id": 0,
            "seek": 0,
            "start": 0.0,
            "end": self.duration_s,
            "text": self.text,
            "tokens": self.token_ids,
            "temperature": self.asked.temperature,
            "avg_logprob": sum(one["logprob"] for one in self.logprobs) / len(self.logprobs),
            "compression_ratio": len(data) / len(zlib.compress(data)),
            "no_speech_prob": 0.0,  # there is text, and the model says no more
        }
