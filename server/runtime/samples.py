"""The samples that leave the graph: s16le, at the rate and with the channels that their stage says.

Stereo is interleaved: a left and a right sample, and so on.
"""

from dataclasses import dataclass

from omnistage.server.errors import ApiError
from omnistage.server.runtime.stage_link import StageLink

SAMPLE_BYTES = 2


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """What the bytes of some samples mean."""

    rate_hz: int
    num_channels: int = 1

    @property
    def num_bytes(self) -> int:
        """Of one sample of each channel."""
        return SAMPLE_BYTES * self.num_channels

    def seconds(self, num_bytes: int) -> float:
        """How long so many bytes play."""
        return num_bytes / self.num_bytes / self.rate_hz


def sample_format_of(link: StageLink) -> SampleFormat:
    """Of the samples that a stage sends; ApiError if it has not said its rate."""
    rate_hz = link.record.sample_rate_hz
    if rate_hz is None:
        message = f"Stage {link.name} sends audio and has not said its sample rate."
        raise ApiError(500, message, code="unknown_sample_rate")
    return SampleFormat(rate_hz, link.record.num_channels)
