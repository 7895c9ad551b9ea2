"""The user of a session: audio that comes, the turns in it, the items that they become."""

import asyncio
from collections.abc import Callable
from functools import partial

from omnistage.server.common.errors import ApiError
from omnistage.server.media.parts import decoded
from omnistage.server.realtime.answering.answer import RealtimeAnswer
from omnistage.server.realtime.answering.answers import Answers
from omnistage.server.realtime.answering.response import Response
from omnistage.server.realtime.common import Common
from omnistage.server.realtime.events import new_id
from omnistage.server.realtime.hearing import Hearing, Judge, MakeDetector
from omnistage.server.realtime.items import Item, Part
from omnistage.server.realtime.settings import (
    LOGPROBS,
    RealtimeSettings,
    Settings,
    transcription_of,
)
from omnistage.server.realtime.transcripts import TranscriptionJob, Transcripts
from omnistage.server.realtime.voice.formats import UserAudio
from omnistage.server.realtime.voice.listening import MIN_COMMIT_MS
from omnistage.server.realtime.voice.turns import TurnPaused, TurnResumed, TurnStarted, TurnStopped

MS = 1000  # in a second


class Listener:
    """Makes items of audio, by the client's commits or by turns; interrupts answers."""

    def __init__(
        self,
        common: Common,
        settings: Callable[[], Settings],
        make_detector: MakeDetector,
        judge: Judge | None,
        answers: Answers,
        transcripts: Transcripts,
    ) -> None:
        self._common = common
        self._settings = settings
        self._answers = answers
        self._hearing = Hearing(make_detector, judge)
        self._transcripts = transcripts
        self._item_id: str | None = None  # of the turn that goes on
        self._paused: UserAudio | None = None  # its audio, as the answer ahead has read it
        self._idle: asyncio.TimerHandle | None = None
        self._played: tuple[Response, float] | None = None  # the last, and until when
        answers.on_end = self._wait_for_speech
        self.configure()

    def configure(self) -> None:
        """Take the session's settings from now on; a turn that is detected no more has stopped."""
        self.stop_waiting()
        self._answers.drop_ahead()
        was_speaking = self._hearing.is_speaking
        self._hearing.configure(self._settings().audio.input)
        if was_speaking and not self._hearing.is_speaking:
            self._tell_stopped(self._hearing.buffer.end_ms)

    async def append(self, audio: str) -> None:
        """Take base64 of whole samples, and what turns that brings; raises ApiError."""
        for change in await self._hearing.add(decoded(audio, "audio")):
            match change:
                case TurnStarted():
                    self._begin_turn(change)
                case TurnPaused():
                    self._answer_ahead(change)
                case TurnResumed():
                    self._paused = None
                    self._answers.drop_ahead()
                case TurnStopped():
                    self._end_turn(change)

    def _begin_turn(self, started: TurnStarted) -> None:
        self.stop_waiting()
        self._hearing.buffer.forget_before(started.at_ms)
        self._item_id = new_id("item")
        detection = self._settings().audio.input.turn_detection
        interrupted = None
        if detection is not None and detection.interrupt_response:
            interrupted = self._answers.take_active()
        if interrupted is not None:
            interrupted.withdraw()
        about = {"audio_start_ms": round(started.at_ms), "item_id": self._item_id}
        self._common.tell({"type": "input_audio_buffer.speech_started", **about})
        if interrupted is not None:
            interrupted.cancel("turn_detected")
        self._answers.history.read_soon()

    def _answer_ahead(self, paused: TurnPaused) -> None:
        """Begin the answer that a turn will get if it has ended here."""
        detection = self._settings().audio.input.turn_detection
        if detection is not None and detection.create_response:
            self._paused = self._hearing.buffer.peek(paused.at_ms)
            self._answers.begin_ahead(self._item_of(self._paused))

    def _end_turn(self, stopped: TurnStopped) -> None:
        self._tell_stopped(stopped.at_ms)
        sound, paused = self._hearing.buffer.take(end_ms=stopped.end_ms), self._paused
        item = self._add(paused if paused == sound else sound)
        self._paused = None
        self._hearing.buffer.forget_before(stopped.at_ms)
        settings = self._settings()
        detection = settings.audio.input.turn_detection
        is_answered = isinstance(settings, RealtimeSettings)
        if detection is not None and detection.create_response and is_answered:
            self._answers.owe()
        self._transcribe(item, self._answers.active)

    def _tell_stopped(self, at_ms: float) -> None:
        about = {"audio_end_ms": round(at_ms), "item_id": self._item_id}
        self._common.tell({"type": "input_audio_buffer.speech_stopped", **about})

    def commit(self) -> None:
        """Make an item of the buffer; raises ApiError if there is too little in it."""
        buffer = self._hearing.buffer
        if buffer.ms < MIN_COMMIT_MS:
            message = (
                f"Error committing input audio buffer: buffer too small. Expected at least "
                f"{MIN_COMMIT_MS}ms of audio, but buffer only has {buffer.ms:.2f}ms."
            )
            raise ApiError(400, message, code="input_audio_buffer_commit_empty")
        self._hearing.end_turn()
        self._answers.drop_ahead()
        self._transcribe(self._add(buffer.take()), None)

    def clear(self) -> None:
        """Forget the buffer, and the turn that goes on."""
        self._hearing.buffer.clear()
        self._hearing.end_turn()
        self._answers.drop_ahead()
        self._item_id = None
        self._common.tell({"type": "input_audio_buffer.cleared"})

    def _item_of(self, sound: UserAudio) -> Item:
        return Item(self._item_id or new_id("item"), content=[Part("input_audio", sound=sound)])

    def _add(self, sound: UserAudio) -> Item:
        item = self._item_of(sound)
        self._item_id = None
        previous = self._common.conversation.add(item)
        about = {"item_id": item.id, "previous_item_id": previous}
        self._common.tell({"type": "input_audio_buffer.committed", **about})
        self._common.tell_added(item, previous)
        self._answers.history.read_soon()
        return item

    def _transcribe(self, item: Item, answer: RealtimeAnswer | None) -> None:
        """Transcribe what was said if the session is to, after its answer has begun.

        An answer to words alone is made of the transcript, which comes first.
        """
        settings = self._settings()
        chosen = transcription_of(settings)
        if chosen is not None:
            has_logprobs = LOGPROBS in (settings.include or ())
            after = answer.begun if answer is not None and self._common.flow.hears else None
            self._transcripts.add(TranscriptionJob(item, chosen, has_logprobs, after))

    # Silence

    def _wait_for_speech(self, response: Response) -> None:
        """Take the user for silent some time after a response has been played."""
        detection = self._settings().audio.input.turn_detection
        if detection is None or detection.idle_timeout_ms is None or self._hearing.is_speaking:
            return
        self.stop_waiting()
        loop = asyncio.get_running_loop()
        played_at = loop.time() + response.left_to_play_ms / MS
        work = partial(self._tell_silence, self._hearing.buffer.end_ms)
        due_at = played_at + detection.idle_timeout_ms / MS
        self._idle = loop.call_at(due_at, self._common.tasks.run, work)
        self._played = response, played_at

    def shorten_wait(self) -> None:
        """Count silence from now on if the client has stopped playing the last response."""
        if self._idle is not None and self._played is not None:
            response, played_at = self._played
            if asyncio.get_running_loop().time() < played_at:
                self._wait_for_speech(response)

    def stop_waiting(self) -> None:
        """Take the user for silent no more."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = self._played = None

    def _tell_silence(self, start_ms: float) -> None:
        buffer = self._hearing.buffer
        self._item_id = new_id("item")
        about = {"audio_start_ms": round(start_ms), "audio_end_ms": round(buffer.end_ms)}
        kind = "input_audio_buffer.timeout_triggered"
        self._common.tell({"type": kind, **about, "item_id": self._item_id})
        self._add(buffer.take())
        self._answers.owe()
