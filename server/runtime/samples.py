"""The form of the samples that leave the graph: s16le, mono, at a rate that their stage says."""

from omnistage.server.errors import ApiError
from omnistage.server.runtime.stage_link import StageLink

SAMPLE_BYTES = 2


def sample_rate_of(link: StageLink) -> int:
    """How many samples a second a stage sends; ApiError if it has not said it."""
    rate_hz = link.record.sample_rate_hz
    if rate_hz is None:
        message = f"Stage {link.name} sends audio and has not said its sample rate."
        raise ApiError(500, message, code="unknown_sample_rate")
    return rate_hz
