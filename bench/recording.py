"""One answer as it arrives."""

from dataclasses import dataclass, field

from omnistage.bench.audio import AudioMeter
from omnistage.bench.events import Event, ServerUsage, message_of
from omnistage.bench.metrics import Packet
from omnistage.bench.report import Sample


class AnswerError(ValueError):
    """An answer that is an error, or no whole answer."""


@dataclass(slots=True)
class Repeats:
    """Looks for a model that says one thing again and again, as one whose logits are NaN does."""

    longest: int = 0  # how often the same came in a row
    _last: str = ""
    _count: int = 0

    def add(self, text: str) -> None:
        """Add a piece of text: usually a token; each character of a longer run of one counts."""
        same = text if len(set(text)) > 1 else text[0]
        times = 1 if same == text else len(text)
        self._count = self._count + times if same == self._last else times
        self._last = same
        self.longest = max(self.longest, self._count)


@dataclass(slots=True)
class Recording:
    """The answer so far to a request sent at `start_s`; samples count from there."""

    start_s: float
    text_arrivals_s: list[float] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    num_images: int = 0
    usage: ServerUsage = field(default_factory=ServerUsage)
    timeline: dict[str, float] = field(default_factory=dict)
    is_finished: bool = False
    _meter: AudioMeter = field(default_factory=AudioMeter)
    _repeats: Repeats = field(default_factory=Repeats)

    def start_at(self, due_s: float | None) -> None:
        """Count from when the request was to come, if it was to; nothing is added afterwards."""
        if due_s is None:
            return
        late_s = self.start_s - due_s
        self.start_s = due_s
        self.text_arrivals_s = [one + late_s for one in self.text_arrivals_s]
        self.packets = [Packet(one.arrival_s + late_s, one.duration_s) for one in self.packets]

    def add_samples(self, num_bytes: int, at_s: float) -> None:
        """Add raw samples, of 24 kHz mono s16le."""
        if num_bytes:
            duration_s = num_bytes / self._meter.bytes_per_s
            self.packets.append(Packet(at_s - self.start_s, duration_s))

    def add(self, event: Event, at_s: float) -> None:
        """Add one event; raises AnswerError if it is an error, AudioError if it cannot be timed."""
        if event.error is not None:
            raise AnswerError(message_of(event.error))
        self._add_usage(event.usage)
        self.timeline |= {f"{mark.stage}.{mark.event}": mark.ms / 1e3 for mark in event.timeline}
        arrival_s = at_s - self.start_s
        is_sound = event.modality == "audio"
        for choice in event.choices:
            self.is_finished |= choice.finish_reason is not None
            delta = choice.delta or choice.message
            if delta is None:
                continue
            text = delta.text(is_sound)
            if text:
                self.text_arrivals_s.append(arrival_s)
                self._repeats.add(text)
            duration_s = self._meter.duration_s(delta.sound(is_sound) or "")
            if duration_s > 0:
                self.packets.append(Packet(arrival_s, duration_s))
            self.num_images += delta.num_images()

    def _add_usage(self, usage: ServerUsage | None) -> None:
        """The last one that counts most: vllm-omni's chunks of sound say 0 tokens."""
        if usage and (usage.completion_tokens or 0) >= (self.usage.completion_tokens or 0):
            self.usage = usage

    def check(self, has_audio: bool) -> None:
        """Raise AnswerError if the answer is not whole."""
        if not self.is_finished:
            raise AnswerError("the answer ended without a finish_reason")
        if has_audio and not self.packets:
            raise AnswerError("the answer has no sound")

    def to_sample(
        self, number: int, level_start_s: float, end_s: float, error: str | None
    ) -> Sample:
        """The recording as it is kept, of an answer that ended at `end_s`."""
        details = self.usage.completion_tokens_details
        text_tokens = details.text_tokens if details else None
        return Sample(
            number=number,
            start_s=self.start_s - level_start_s,
            end_s=end_s - level_start_s,
            text_arrivals_s=tuple(self.text_arrivals_s),
            packets=tuple(self.packets),
            num_images=self.num_images,
            longest_repeat=self._repeats.longest,
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
            timeline_s=self.timeline,
            text_tokens=self.usage.completion_tokens if text_tokens is None else text_tokens,
            error=error,
        )
