"""One response: from a chat's chunks and audio to events, in OpenAI's order.

One message is open at a time. Calls of functions come behind it: one that is made while audio is
still to come waits for that.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from omnistage.server.common.errors import ApiError
from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.realtime.answering.function_calls import FunctionCallProgress
from omnistage.server.realtime.answering.usage import response_usage
from omnistage.server.realtime.common import Tell
from omnistage.server.realtime.conversation import Conversation
from omnistage.server.realtime.events import new_id
from omnistage.server.realtime.items import Item, Part, Status
from omnistage.server.realtime.playout import PlayedAnswer
from omnistage.server.realtime.settings import ResponseSettings
from omnistage.server.realtime.voice.formats import UserAudio, sample_bytes, samples_of
from omnistage.server.tasks.chat.chunks import delta_of, finish_reason_of
from omnistage.stage_configs.json_types import Json, JsonMap

DELTA_S = 0.5  # of audio in one event, at most
# Why a chat's choice ended, where that is no end.
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Response:
    """Makes the events of one response; without a conversation it is out of band."""

    def __init__(
        self,
        settings: ResponseSettings,
        conversation: Conversation | None,
        conversation_id: str | None,
        tell: Tell,
    ) -> None:
        self.id = new_id("resp")
        self.settings = settings
        self.is_over = False
        self._began_playing: float | None = None  # when its first sound was sent, loop time
        self._conversation = conversation
        self._conversation_id = conversation_id
        self._tell = tell
        self.is_spoken = settings.output_modalities == ["audio"]
        self._form = settings.audio.output.format.type
        self._output: list[Item] = []
        self._message: Item | None = None
        self._message_index = 0
        self._audio_has_ended = not self.is_spoken
        self._calls: dict[int, FunctionCallProgress] = {}
        self._finish_reason = "stop"
        self._usage: JsonMap = {}
        self._num_frames = 0
        self._unsent: deque[Callable[[], None]] = deque()  # how to take each delta back

    @property
    def is_in_conversation(self) -> bool:
        """Returns whether its items become the conversation's."""
        return self._conversation is not None

    @property
    def has_output(self) -> bool:
        """Return whether some item of it has begun."""
        return bool(self._output)

    @property
    def has_sound(self) -> bool:
        """Returns whether some of its audio was sent."""
        return self._began_playing is not None

    @property
    def left_to_play_ms(self) -> float:
        """How long a client that plays it from its first sound on still plays it."""
        if self._began_playing is None:
            return 0.0
        played_s = asyncio.get_running_loop().time() - self._began_playing
        whole_ms = sum(item.spoken.kept_ms for item in self._output if item.spoken is not None)
        return max(0.0, whole_ms - 1000 * played_s)

    @property
    def chat_usage(self) -> JsonMap:
        """Return the usage of its chat, as far as that has come."""
        return self._usage

    def begin(self) -> None:
        """Tell that it is there, with nothing in it."""
        self._tell({"type": "response.created", "response": self._object("in_progress", None)})

    # What the chat makes

    def add_chunk(self, chunk: JsonMap) -> None:
        """Add a chunk of the chat's text."""
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", ()):
            self._finish_reason = finish_reason_of(choice) or self._finish_reason
            delta = delta_of(choice)
            if delta.get("content"):
                self._add_words(delta["content"])
            for call in delta.get("tool_calls", ()):
                self._add_call(call)

    def _add_words(self, words: str) -> None:
        part = self._opened().content[0]
        if part.spoken is not None:
            part.spoken.pieces.append(words)
            self._unsent.append(partial(_pop, part.spoken))
            self._tell_delta("response.output_audio_transcript.delta", words)
        else:
            part.text = (part.text or "") + words
            length = len(part.text) - len(words)
            self._unsent.append(lambda: setattr(part, "text", (part.text or "")[:length]))
            self._tell_delta("response.output_text.delta", words)

    def pieces_of(self, data: bytes) -> list[bytes]:
        """Cut encoded audio, whole samples, to what one event has."""
        size = round(DELTA_S * samples_of(self._form).rate_hz) * sample_bytes(self._form)
        return [data[start : start + size] for start in range(0, len(data), size)]

    def add_audio(self, piece: bytes) -> None:
        """Add a piece of the audio."""
        spoken = self._opened().content[0].spoken
        assert spoken is not None
        ms = UserAudio(piece, self._form).ms
        spoken.ms += ms
        self._unsent.append(lambda: _shorten(spoken, ms))
        self._tell_delta("response.output_audio.delta", piece)
        if self._began_playing is None:
            self._began_playing = asyncio.get_running_loop().time()

    def end_audio(self, num_frames: int) -> None:
        """No more audio comes; `num_frames`: of the codec, which it had."""
        self._num_frames = num_frames
        self._audio_has_ended = True
        self._tell_calls()

    def _tell_delta(self, kind: str, delta: str | bytes) -> None:
        assert self._message is not None
        self._tell({"type": kind, **self._place(self._message), "delta": delta}, self._message)

    def note_sent(self) -> None:
        """All that was told has left."""
        self._unsent.clear()

    def withdraw(self, outbox: Outbox) -> None:
        """Take back the deltas of the open message that have not left: they were never said."""
        if self._message is not None:
            for _ in range(outbox.withdraw(self._message)):
                self._unsent.pop()()

    # Items

    def _opened(self) -> Item:
        """Return the message, which begins now if there is none."""
        if self._message is None:
            self._message = Item(new_id("item"), status="in_progress", role="assistant")
            self._message_index = self._begin_item(self._message)
            part = Part("output_text", text="")
            if self.is_spoken:
                part = Part("output_audio", spoken=PlayedAnswer())
            self._message.content.append(part)
            self._tell_part("response.content_part.added", self._message)
        return self._message

    def _begin_item(self, item: Item) -> int:
        index = len(self._output)
        self._output.append(item)
        about = {"response_id": self.id, "output_index": index, "item": item.to_json()}
        self._tell({"type": "response.output_item.added", **about})
        if self._conversation is not None:
            previous = self._conversation.add(item)
            added = {"previous_item_id": previous, "item": item.to_json()}
            self._tell({"type": "conversation.item.added", **added})
        return index

    def _end_item(self, item: Item, index: int) -> None:
        """Tell its end: as it was sent, then as the conversation has it, which may be truncated."""
        about = {"response_id": self.id, "output_index": index, "item": item.to_json(is_sent=True)}
        self._tell({"type": "response.output_item.done", **about})
        if self._conversation is not None and item.id in self._conversation:
            previous = self._conversation.previous_of(item.id)
            done = {"previous_item_id": previous, "item": item.to_json()}
            self._tell({"type": "conversation.item.done", **done})

    def _place(self, item: Item) -> Json:
        place = {"response_id": self.id, "item_id": item.id, "output_index": self._message_index}
        return {**place, "content_index": 0}

    def _tell_part(self, kind: str, item: Item) -> None:
        words = item.content[0].sent_words
        part = {"type": "audio", "transcript": words}
        if not self.is_spoken:
            part = {"type": "text", "text": words}
        self._tell({"type": kind, **self._place(item), "part": part})

    def _end_message(self, status: Status) -> None:
        item, self._message = self._message, None
        if item is None:
            return
        self._unsent.clear()
        words = item.content[0].sent_words
        if self.is_spoken:
            place = self._place(item)
            self._tell({"type": "response.output_audio.done", **place})
            kind = "response.output_audio_transcript.done"
            self._tell({"type": kind, **place, "transcript": words})
        else:
            self._tell({"type": "response.output_text.done", **self._place(item), "text": words})
        self._tell_part("response.content_part.done", item)
        item.status = status
        self._end_item(item, self._message_index)

    def _add_call(self, given: JsonMap) -> None:
        call = self._calls.setdefault(given["index"], FunctionCallProgress())
        call.add(given.get("function") or {})
        if self._audio_has_ended or self._message is None:
            self._tell_calls()

    def _tell_calls(self) -> None:
        """Tell what has come of the calls, behind the message that is open."""
        for call in self._calls.values():
            if call.name and call.item is None:
                self._end_message("completed")
                call.output_index = self._begin_item(call.begin())
            for event in call.deltas(self.id):
                self._tell(event)

    def _end_calls(self, status: Status) -> None:
        for call in self._calls.values():
            if call.item is None:
                continue
            self._tell(call.done(self.id))
            call.item.status = status
            self._end_item(call.item, call.output_index)
        self._calls.clear()

    # Its end

    def complete(self) -> None:
        """End it as the chat has ended."""
        self._audio_has_ended = True
        self._tell_calls()
        if not self._output:
            self._opened()
        reason = INCOMPLETE.get(self._finish_reason)
        if reason is None:
            self._end("completed", "completed", None)
        else:
            self._end("incomplete", "incomplete", {"type": "incomplete", "reason": reason})

    def cancel(self, reason: str) -> None:
        """End it for a client that does not want more, or speaks."""
        self._end("cancelled", "incomplete", {"type": "cancelled", "reason": reason})

    def fail(self, error: ApiError) -> None:
        """End it with a failure."""
        told = {
            "type": error.type,
            "code": error.code or "server_error",
            "message": error.message,
        }
        self._end("failed", "incomplete", {"type": "failed", "error": told})

    def _end(self, status: str, of_items: Status, details: Json | None) -> None:
        assert not self.is_over
        self._end_message(of_items)
        self._end_calls(of_items)
        self.is_over = True
        self._tell({"type": "response.done", "response": self._object(status, details)})

    def _object(self, status: str, details: Json | None) -> Json:
        settings = self.settings
        output = settings.audio.output
        form = output.format.model_dump(exclude_none=True)
        usage = response_usage(self._usage, self._num_frames) if self.is_over else None
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": [item.to_json(is_sent=True) for item in self._output],
            "metadata": settings.metadata,
            "conversation_id": self._conversation_id if self.is_in_conversation else None,
            "output_modalities": settings.output_modalities,
            "max_output_tokens": settings.max_output_tokens,
            "audio": {"output": {"format": form, "voice": output.voice}},
            "usage": usage,
        }


def _pop(spoken: PlayedAnswer) -> None:
    spoken.pieces.pop()


def _shorten(spoken: PlayedAnswer, ms: float) -> None:
    spoken.ms -= ms
