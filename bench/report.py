"""The report of a run: every sample, and figures derived from them. Times are seconds."""

from collections.abc import Iterator
from functools import cached_property
from statistics import fmean

from pydantic import BaseModel, computed_field

from omnistage.bench.metrics import (
    Packet,
    Playback,
    Summary,
    gaps,
    most_in_flight,
    play,
    queue_grew,
    summarize,
)
from omnistage.bench.profile.figures import Profile

FIRST_SOUND = "gateway.first_audio"
TOLERATED_S = 0.001  # between two reads of what the server sent at once


class Sample(BaseModel, frozen=True):
    """One request. `start_s` and `end_s` count from its level's start, arrivals from its own."""

    number: int
    start_s: float
    end_s: float
    text_arrivals_s: tuple[float, ...] = ()
    packets: tuple[Packet, ...] = ()
    num_images: int = 0
    longest_repeat: int = 0  # how often the same piece of text came in a row
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    text_tokens: int | None = None
    timeline_s: dict[str, float] = {}
    error: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def e2e_s(self) -> float:
        """From sending the request to the end of its answer."""
        return self.end_s - self.start_s

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ttft_s(self) -> float | None:
        """Time to the first text, a transcript's too."""
        return self.text_arrivals_s[0] if self.text_arrivals_s else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ttfp_s(self) -> float | None:
        """Time to the first packet with samples in it."""
        return self.packets[0].arrival_s if self.packets else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def audio_s(self) -> float:
        """How long the sound plays."""
        return sum(packet.duration_s for packet in self.packets)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rtf(self) -> float | None:
        """Real-time factor: end to end over the sound's length."""
        return self.e2e_s / self.audio_s if self.packets else None

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def playback(self) -> Playback:
        """Returns what a player in real time made of it."""
        return play(self.packets)

    @property
    def text_gaps_s(self) -> list[float]:
        """Between arrivals of text."""
        return gaps(self.text_arrivals_s)

    @property
    def packet_gaps_s(self) -> list[float]:
        """Between arrivals of sound."""
        return gaps(packet.arrival_s for packet in self.packets)


class Rates(BaseModel, frozen=True):
    """The sums of good answers per second."""

    requests: float
    completion_tokens: float
    text_tokens: float
    audio_s: float
    images: float


class Loaded(BaseModel, frozen=True):
    """The outcome of one load: streams that are kept busy, or arrivals at a rate (requests/s)."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """Returns its name for people."""
        return f"{self.rate:g} req/s" if self.concurrency is None else str(self.concurrency)


class Level(Loaded, frozen=True):
    """All requests of one load.

    `client_cpu` is the share of one core that the client itself needed, `client_lag_s` how late it
    woke from short sleeps. `profile`: what stages did in the middle of it, if that was asked for;
    `no_profile` says why that could not be had.
    """

    duration_s: float
    client_cpu: float
    client_lag_s: Summary | None = None
    profile: Profile | None = None
    no_profile: str = ""
    warmup_errors: tuple[str, ...] = ()
    samples: tuple[Sample, ...]

    @property
    def errors(self) -> list[str]:
        """One message for each request that failed, the warm-up's too."""
        failed = [sample.error for sample in self.samples if sample.error is not None]
        return [*self.warmup_errors, *failed]

    @property
    def answered(self) -> list[Sample]:
        """The samples that figures are made of."""
        return [sample for sample in self.samples if sample.error is None]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def num_failed(self) -> int:
        """Requests that got no whole answer."""
        return len(self.samples) - len(self.answered)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def most_in_flight(self) -> int:
        """How many requests were there at once at most."""
        return most_in_flight((one.start_s, one.end_s) for one in self.samples)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def queue_grew(self) -> bool:
        """Returns whether the server did not keep up with the rate."""
        spans = [(one.start_s, one.end_s) for one in self.samples]
        return self.rate is not None and queue_grew([spans])

    @computed_field  # type: ignore[prop-decorator]
    @property
    def num_underruns(self) -> int:
        """Answers in which a player that starts at the first packet ran dry."""
        return sum(one.playback.longest_stall_s > TOLERATED_S for one in self.answered)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def metrics(self) -> dict[str, Summary]:
        """Distributions over the answered requests; a metric that no answer has is absent."""
        made = {name: summarize(values) for name, values in self._values()}
        return {name: summary for name, summary in made.items() if summary is not None}

    def _values(self) -> Iterator[tuple[str, list[float]]]:
        samples = self.answered
        spoken = [sample for sample in samples if sample.packets]
        yield "ttft_s", [one.ttft_s for one in samples if one.ttft_s is not None]
        yield "ttfp_s", [one.ttfp_s for one in spoken if one.ttfp_s is not None]
        yield "e2e_s", [one.e2e_s for one in samples]
        yield "rtf", [one.rtf for one in spoken if one.rtf is not None]
        yield "stall_s", [one.playback.stall_s for one in spoken]
        yield "longest_stall_s", [one.playback.longest_stall_s for one in spoken]
        yield "packet_gap_s", [gap for one in spoken for gap in one.packet_gaps_s]
        yield "text_gap_s", [gap for one in samples for gap in one.text_gaps_s]
        yield "audio_s", [one.audio_s for one in spoken]
        counts = [one.prompt_tokens for one in samples]
        yield "prompt_tokens", [count for count in counts if count is not None]
        counts = [one.text_tokens for one in samples]
        yield "text_tokens", [count for count in counts if count is not None]

    @property
    def timeline_s(self) -> dict[str, float]:
        """Means of the stamps that every spoken answer has, in their order, to the first sound."""
        spoken = [one for one in self.answered if FIRST_SOUND in one.timeline_s]
        if not spoken:
            return {}
        names = set.intersection(*(set(one.timeline_s) for one in spoken))
        means = {name: fmean(one.timeline_s[name] for one in spoken) for name in names}
        ordered = sorted(means, key=means.__getitem__)
        return {name: means[name] for name in ordered[: ordered.index(FIRST_SOUND) + 1]}

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def rates(self) -> Rates:
        """Over the time from the first request's start to the last one's end."""
        samples = self.answered
        return Rates(
            requests=len(samples) / self.duration_s,
            completion_tokens=sum(one.completion_tokens or 0 for one in samples) / self.duration_s,
            text_tokens=sum(one.text_tokens or 0 for one in samples) / self.duration_s,
            audio_s=sum(one.audio_s for one in samples) / self.duration_s,
            images=sum(one.num_images for one in samples) / self.duration_s,
        )


class Report(BaseModel, frozen=True):
    """The file that `--json` writes."""

    date: str
    command: str
    omnistage: str
    url: str
    model: str
    seed: int
    levels: tuple[Level, ...]
