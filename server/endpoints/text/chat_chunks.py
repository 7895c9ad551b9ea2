"""A running chat as OpenAI's chunks, and as one completion of all of them."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from omnistage.server.common.trace import (
    FIRST_AUDIO,
    FIRST_IMAGE,
    FIRST_TEXT,
    GATEWAY,
    Timeline,
    current_trace,
)
from omnistage.server.media.audio.encoder import make_encoder
from omnistage.server.media.audio.encoding import encoded
from omnistage.server.tasks.chat.audio_history import AudioHistory, RememberedAnswer
from omnistage.server.tasks.chat.chunks import AnswerChunks, ChatChunk, SpeechChunks
from omnistage.server.tasks.chat.completion import Completion
from omnistage.server.tasks.chat.schema import AudioOptions
from omnistage.server.tasks.chat_task import RunningChat
from omnistage.server.tasks.images.mixed import MixedChunks, with_files

T = TypeVar("T")


class ChatChunks:
    """The chunks of one chat; what it says is remembered for later turns."""

    def __init__(self, running: RunningChat, history: AudioHistory) -> None:
        self._running = running
        self._history = history
        self._words = running.chunks()

    async def all(self) -> AsyncGenerator[ChatChunk, None]:
        """Yield every chunk, the usage last."""
        timeline = current_trace().timeline
        chat, outputs = self._running.chat, self._running.outputs
        if self._running.has_audio:
            form = (chat.audio or AudioOptions()).format
            outputs = encoded(outputs, partial(make_encoder, form, bool(chat.stream)))
        chunks: AnswerChunks | MixedChunks = self._words
        wish = self._running.wish
        if wish is None:
            made = _flatten(outputs, chunks.chunks_of)
        else:
            chunks = mixed = MixedChunks(self._words)
            made = _flatten(with_files(outputs, wish.encoding), mixed.chunks_of)
        async with aclosing(made):
            async for chunk in made:
                yield chunk
                _mark_first(timeline, chunk)
        if isinstance(self._words, SpeechChunks):
            spoken = RememberedAnswer(self._words.transcript, self._words.expires_at)
            self._history.remember(self._words.audio_id, spoken)
        if chat.return_timeline:
            yield chunks.head.chunk([], timeline=timeline.to_list())
        for chunk in chunks.finish():
            yield chunk

    async def whole(self) -> ChatChunk:
        """Return the completion that the chunks are together."""
        completion = Completion()
        async with aclosing(self.all()) as chunks:
            async for chunk in chunks:
                completion.add(chunk)
        if self._running.has_audio:
            return completion.to_speech(self._running.request.message.return_codes)
        return completion.to_text()


async def _flatten(
    outputs: AsyncGenerator[T, None], chunks_of: Callable[[T], list[ChatChunk]]
) -> AsyncGenerator[ChatChunk, None]:
    """Yield the chunks that outputs add, one after another."""
    async with aclosing(outputs):
        async for output in outputs:
            for chunk in chunks_of(output):
                yield chunk


def _mark_first(timeline: Timeline, chunk: ChatChunk) -> None:
    """Stamp the first text, audio and image once they have been handed on."""
    for choice in chunk["choices"]:
        audio = choice["delta"].get("audio", {})
        if "data" in audio:
            timeline.mark(GATEWAY, FIRST_AUDIO)
        if "transcript" in audio or choice["delta"].get("content"):
            timeline.mark(GATEWAY, FIRST_TEXT)
        if "images" in choice["delta"]:
            timeline.mark(GATEWAY, FIRST_IMAGE)
