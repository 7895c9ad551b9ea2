"""Metrics of listeners and operators; pure functions, times in seconds."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel

MIN_HALF = 8  # requests; of fewer nothing is said of a queue
ANSWERED_SHARE, SLOWER = 0.9, 1.5
Span = tuple[float, float]
"""When a request came and when its answer ended."""


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
    """Returns what a player in real time does that starts at the first packet and waits when it
    runs dry.

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


def most_in_flight(spans: Iterable[Span]) -> int:
    """How many requests were there at once at most; one that ends makes room for the next."""
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    return max(accumulate(change for _, change in changes), default=0)


def queue_grew(rounds: Iterable[Sequence[Span]]) -> bool:
    """Returns whether requests seem to have come faster than they were answered, so that a queue
    grew.

    While the later half of the requests came, fewer than nine in ten as many ended, and that half
    took half as long again as the earlier one (medians); either alone happens by chance. `rounds`:
    of each, every request. Of fewer than 16 requests it is False.
    """
    earlier_s, later_s = list[float](), list[float]()
    num_came = num_ended = 0
    for spans in map(sorted, filter(None, rounds)):
        middle = len(spans) // 2
        earlier_s += [end - start for start, end in spans[:middle]]
        later_s += [end - start for start, end in spans[middle:]]
        since, until = spans[middle][0], spans[-1][0]
        num_came += len(spans) - middle - 1
        num_ended += sum(since < end <= until for _, end in spans)
    if len(earlier_s) < MIN_HALF:
        return False
    is_slower = bool(np.median(later_s) > SLOWER * np.median(earlier_s))
    return is_slower and num_ended < ANSWERED_SHARE * num_came
