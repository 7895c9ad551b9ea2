"""When things of one answer came, in seconds since it was asked for."""

import time
from dataclasses import dataclass, field

from omnistage.demo.sound import duration_s


@dataclass(slots=True)
class Timing:
    """Stamps of one answer."""

    begun_s: float = field(default_factory=time.perf_counter)
    first_text_s: float | None = None
    first_sound_s: float | None = None
    first_image_s: float | None = None
    ended_s: float | None = None
    sound_bytes: int = 0

    def now_s(self) -> float:
        return time.perf_counter() - self.begun_s

    def text(self) -> None:
        """Some text came."""
        if self.first_text_s is None:
            self.first_text_s = self.now_s()

    def sound(self, num_bytes: int) -> None:
        """So many bytes of samples came."""
        if self.first_sound_s is None:
            self.first_sound_s = self.now_s()
        self.sound_bytes += num_bytes

    def image(self) -> None:
        """A picture or a preview of one came."""
        if self.first_image_s is None:
            self.first_image_s = self.now_s()

    def end(self) -> None:
        self.ended_s = self.now_s()

    @property
    def rtf(self) -> float | None:
        """Real-time factor: end to end over the sound's length."""
        if self.ended_s is None or not self.sound_bytes:
            return None
        return self.ended_s / duration_s(self.sound_bytes)
