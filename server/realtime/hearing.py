"""A session's ear: its input buffer, and when somebody speaks in it."""

from collections.abc import Callable

from omnistage.server.realtime.settings import AudioInput
from omnistage.server.realtime.voice.detectors import Detector
from omnistage.server.realtime.voice.formats import PCM
from omnistage.server.realtime.voice.listening import FRAME_MS, Ear, InputBuffer
from omnistage.server.realtime.voice.turns import TurnChange, TurnMachine

KEPT_MS = 500  # before what is heard now, beside the padding: frames that the judge has not seen

MakeDetector = Callable[[], Detector]


class Hearing:
    """Takes audio as it is appended; tells turns where the session's settings detect them."""

    def __init__(self, make_detector: MakeDetector) -> None:
        self._make_detector = make_detector
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
            self._turns.settings = detection.turns
        else:
            self._ear = Ear(form)
            self._detector = self._make_detector()
            self._turns = TurnMachine(detection.turns, self.buffer.end_ms)

    async def add(self, data: bytes) -> list[TurnChange]:
        """Add whole samples; returns the turns that begin, pause and end. ApiError."""
        self.buffer.append(data)
        turns, detector = self._turns, self._detector
        if turns is None or detector is None:
            return []
        probabilities = await detector.probabilities(self._ear.add(data))
        changes = [turns.update(float(one), FRAME_MS) for one in probabilities]
        if not turns.is_speaking and not any(changes):
            kept_ms = turns.settings.prefix_padding_ms + KEPT_MS
            self.buffer.forget_before(self.buffer.end_ms - kept_ms)
        return [change for change in changes if change is not None]

    def end_turn(self) -> None:
        """End the turn that goes on: what comes now is another one's."""
        if self._turns is not None:
            self._turns.end()
