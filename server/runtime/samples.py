"""The samples that leave the graph: s16le, at the rate and with the channels that their stage says.

Stereo is interleaved: a left and a right sample, and so on.
"""

from dataclasses import dataclass

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.stage_link import StageLink

SAMPLE_BYTES = 2


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """The format of samples as bytes."""

    rate_hz: int
    num_channels: int = 1

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of one sample of each channel."""
        return SAMPLE_BYTES * self.num_channels

    def seconds(self, num_bytes: int) -> float:
        """How long so many bytes play."""
        return num_bytes / self.num_bytes / self.rate_hz


def sample_format_of(link: StageLink, pcm: Tensor | None) -> SampleFormat:
    """Returns the format of a stage's samples; ApiError if its rate is not known yet.

    `pcm`: int16 [n] or [n, 2], whose shape says whether they are stereo; None: as the stage does.
    """
    rate_hz = link.record.sample_rate_hz
    if rate_hz is None:
        message = f"Stage {link.name} sends audio and has not said its sample rate."
        raise ApiError(500, message, code="unknown_sample_rate")
    shape = () if pcm is None else pcm.shape
    return SampleFormat(rate_hz, shape[1] if len(shape) > 1 else link.record.num_channels)
