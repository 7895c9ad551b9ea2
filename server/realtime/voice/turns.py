"""When somebody speaks: a state machine over probabilities of speech, without clocks."""

from dataclasses import dataclass

MIN_SPEECH_FRAMES = 3  # so many frames of speech in a row begin a turn
HYSTERESIS = 0.15  # a turn may end only where speech is less likely than it began by so much
MIN_THRESHOLD = 0.01
PAUSE_MS = 100.0  # of silence within a turn that may be its end; an item has no more of it


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """How a turn is told: a probability, and milliseconds before it and of silence behind it.

    `judge_ms`: the silence after which a judge is asked whether it has ended; None: there is none.
    """

    threshold: float = 0.5
    prefix_padding_ms: float = 300
    silence_ms: float = 500
    judge_ms: float | None = None


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn has begun; `at_ms` has the padding before it."""

    at_ms: float


@dataclass(frozen=True, slots=True)
class TurnPaused:
    """A turn may have ended; its item would end at `at_ms`."""

    at_ms: float


@dataclass(frozen=True, slots=True)
class TurnDoubtful:
    """A judge is to be asked whether a turn has ended."""


@dataclass(frozen=True, slots=True)
class TurnResumed:
    """Speech goes on behind a pause that was reported."""


@dataclass(frozen=True, slots=True)
class TurnStopped:
    """A turn has ended; `at_ms` has the silence behind it, and its item ends at `end_ms`."""

    at_ms: float
    end_ms: float


TurnChange = TurnStarted | TurnPaused | TurnDoubtful | TurnResumed | TurnStopped


class TurnMachine:
    """Turns of one session. Times are the milliseconds of the input buffer."""

    def __init__(self, settings: TurnSettings, now_ms: float = 0.0) -> None:
        self.settings = settings
        self.is_speaking = False
        self._now_ms = self._earliest_ms = now_ms
        self._num_speech = 0
        self._speech_ms = now_ms  # where the first frame of a possible turn began
        self._silence_ms = 0.0
        self._longest_ms = 0.0  # of the turn's silences that speech has ended
        self._paused_ms: float | None = None  # where the pause began to be one
        self._is_reported = False  # this pause
        self._is_judged = False  # this pause

    def update(self, probability: float, frame_ms: float) -> TurnChange | None:
        """Add a frame; returns the start, a pause or the end of a turn if this frame decides it."""
        began_ms, self._now_ms = self._now_ms, self._now_ms + frame_ms
        if self.is_speaking:
            return self._hear_speech(probability, frame_ms)
        if probability < self.settings.threshold:
            self._num_speech = 0
            return None
        self._num_speech += 1
        if self._num_speech == 1:
            self._speech_ms = began_ms
        if self._num_speech < MIN_SPEECH_FRAMES:
            return None
        self.is_speaking, self._num_speech = True, 0
        padded_ms = self._speech_ms - self.settings.prefix_padding_ms
        return TurnStarted(max(padded_ms, self._earliest_ms))

    def _hear_speech(self, probability: float, frame_ms: float) -> TurnChange | None:
        if probability >= max(self.settings.threshold - HYSTERESIS, MIN_THRESHOLD):
            was_reported = self._is_reported
            self._longest_ms = max(self._longest_ms, self._silence_ms)
            self._begin_silence()
            return TurnResumed() if was_reported else None
        self._silence_ms += frame_ms
        if self._silence_ms >= self.settings.silence_ms:
            return self.stop()
        if self._paused_ms is None and self._silence_ms >= PAUSE_MS:
            self._paused_ms = self._now_ms
        # A judge may take any pause for the end; otherwise the end is the longest one.
        may_end = self.settings.judge_ms is not None or self._silence_ms > self._longest_ms
        if self._paused_ms is not None and may_end and not self._is_reported:
            self._is_reported = True
            return TurnPaused(self._paused_ms)
        judge_ms = self.settings.judge_ms
        if judge_ms is not None and not self._is_judged and self._silence_ms >= judge_ms:
            self._is_judged = True
            return TurnDoubtful()
        return None

    def stop(self) -> TurnStopped:
        """Decide that the turn that goes on has ended."""
        end_ms = self._now_ms if self._paused_ms is None else self._paused_ms
        self.end()
        return TurnStopped(self._now_ms, end_ms)

    def end(self) -> None:
        """End the turn that goes on, if one does: what comes now is another one's."""
        self.is_speaking = False
        self._num_speech, self._longest_ms = 0, 0.0
        self._begin_silence()
        self._earliest_ms = self._now_ms

    def _begin_silence(self) -> None:
        """Forget the silence until now."""
        self._silence_ms, self._paused_ms = 0.0, None
        self._is_judged = self._is_reported = False
