"""A session's ear: its input buffer, and when somebody speaks in it."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from omnistage.server.realtime.audio_settings import AudioInput, SemanticVad, ServerVad
from omnistage.server.realtime.voice.detectors import Detector
from omnistage.server.realtime.voice.formats import PCM
from omnistage.server.realtime.voice.listening import FRAME_MS, FRAME_SAMPLES, Ear, InputBuffer
from omnistage.server.realtime.voice.log_mel import Floats
from omnistage.server.realtime.voice.turns import (
    TurnChange,
    TurnDoubtful,
    TurnMachine,
    TurnSettings,
    TurnStarted,
    TurnStopped,
)

KEPT_MS = 500  # before what is heard now, beside the padding: frames that the judge has not seen

LEAD_FRAMES = 12  # before a turn was decided to have begun, which the judge hears with it

MakeDetector = Callable[[], Detector]


class Judge(Protocol):
    """Judges by its sound whether a turn has ended."""

    num_samples: int  # of a turn's end that it hears

    async def is_done(self, samples: Floats) -> bool:
        """Return whether the speaker of float32 [n] at 16 kHz is done."""


class Hearing:
    """Takes audio as it is appended; tells turns where the session's settings detect them."""

    def __init__(self, make_detector: MakeDetector, judge: Judge | None = None) -> None:
        self._make_detector = make_detector
        self._judge = judge
        num_frames = 0 if judge is None else judge.num_samples // FRAME_SAMPLES
        self._heard: deque[Floats] = deque(maxlen=num_frames)
        self.buffer = InputBuffer()
        self._ear = Ear(PCM)
        self._detector: Detector | None = None
        self._turns: TurnMachine | None = None

    @property
    def is_speaking(self) -> bool:
        """Returns whether a turn goes on."""
        return self._turns is not None and self._turns.is_speaking

    def configure(self, settings: AudioInput) -> None:
        """Take a session's settings from now on."""
        form = settings.format.type
        self.buffer.change_format(form)
        detection = settings.turn_detection
        if detection is None:
            self._turns = self._detector = None
        elif self._turns is not None and form == self._ear.form:
            self._turns.settings = self._settings_of(detection)
        else:
            self._ear = Ear(form)
            self._detector = self._make_detector()
            self._turns = TurnMachine(self._settings_of(detection), self.buffer.end_ms)

    def _settings_of(self, detection: ServerVad | SemanticVad) -> TurnSettings:
        is_judged = self._judge is not None and isinstance(detection, SemanticVad)
        return detection.judged_turns if is_judged else detection.turns  # type: ignore[union-attr]

    async def add(self, data: bytes) -> list[TurnChange]:
        """Add whole samples; returns the turns that begin, pause and end. ApiError."""
        self.buffer.append(data)
        turns, detector = self._turns, self._detector
        if turns is None or detector is None:
            return []
        frames = self._ear.add(data)
        probabilities = await detector.probabilities(frames)
        changes = []
        for frame, probability in zip(frames, probabilities, strict=True):
            change = turns.update(float(probability), FRAME_MS)
            if turns.settings.judge_ms is not None:
                change = await self._judged(turns, frame, change)
            changes.append(change)
        if not turns.is_speaking and not any(changes):
            kept_ms = turns.settings.prefix_padding_ms + KEPT_MS
            self.buffer.forget_before(self.buffer.end_ms - kept_ms)
        return [change for change in changes if change is not None]

    async def _judged(
        self, turns: TurnMachine, frame: Floats, change: TurnChange | None
    ) -> TurnChange | None:
        """Return a change; one that is in doubt ends the turn, or nothing has changed."""
        self._heard.append(frame)
        if isinstance(change, TurnStarted):
            while len(self._heard) > LEAD_FRAMES:
                self._heard.popleft()
        if not isinstance(change, TurnDoubtful) or self._judge is None:
            return change
        is_done = await self._judge.is_done(np.concatenate(self._heard))
        stopped: TurnStopped | None = turns.stop() if is_done else None
        return stopped

    def end_turn(self) -> None:
        """End the turn that goes on: what comes now is another one's."""
        if self._turns is not None:
            self._turns.end()
