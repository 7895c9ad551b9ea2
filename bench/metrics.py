"""What a listener and an operator measure of answers; pure functions, times in seconds."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel


class Packet(NamedTuple):
    """A piece of sound: when it was there as a whole, and how long it plays."""

    arrival_s: float
    duration_s: float


class Playback(NamedTuple):
    """How often and how long a player had nothing to play before the last packet came."""

    num_stalls: int
    stall_s: float
    longest_stall_s: float


class Summary(BaseModel, frozen=True):
    """A distribution; percentiles interpolate linearly between samples."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def summarize(values: Iterable[float]) -> Summary | None:
    """The distribution of `values`; None if there are none."""
    array = np.fromiter(values, np.float64)
    if not array.size:
        return None
    p50, p90, p95, p99 = np.percentile(array, (50, 90, 95, 99)).tolist()
    return Summary(mean=float(array.mean()), p50=p50, p90=p90, p95=p95, p99=p99)


def play(packets: Sequence[Packet]) -> Playback:
    """What a player in real time does that starts at the first packet and waits when it runs dry.

    `packets` are in order of arrival. The whole stall is the head start, in seconds of sound, with
    which the player would never have stalled.
    """
    stalls = []
    dry_s = packets[0].arrival_s if packets else 0.0
    for packet in packets:
        if packet.arrival_s > dry_s:
            stalls.append(packet.arrival_s - dry_s)
            dry_s = packet.arrival_s
        dry_s += packet.duration_s
    return Playback(len(stalls), sum(stalls), max(stalls, default=0.0))


def gaps(times_s: Iterable[float]) -> list[float]:
    """The differences of neighbours."""
    return [later - earlier for earlier, later in pairwise(times_s)]
