"""How far the clock of another node is ahead, by what beats say of it."""

from typing import NamedTuple


class Reckoning(NamedTuple):
    """`way_ns`: how long the beats were under way, there and back, which bounds the error."""

    way_ns: int
    ahead_ns: int


def reckon(sent_ns: int, heard_ns: int, answered_ns: int, now_ns: int) -> Reckoning:
    """As NTP does: a beat of ours was sent, was heard there, was answered there, and it is now.

    The first and the last are of our clock, the two others of the other node's.
    """
    way = (now_ns - sent_ns) - (answered_ns - heard_ns)
    return Reckoning(way, ((heard_ns - sent_ns) + (answered_ns - now_ns)) // 2)
