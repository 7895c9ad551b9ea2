"""How far the clock of another node is ahead, by what beats say of it."""

from typing import NamedTuple

MAX_DRIFT = 100e-6  # of two clocks: each of them may be wrong by half of it


class Reckoning(NamedTuple):
    """`way_ns`: how long the beats were under way, there and back: the error is at most its half.

    `at_ns`: when it was made, by our clock; the error grows from then on.
    """

    way_ns: int
    ahead_ns: int
    at_ns: int

    def is_surer(self, before: "Reckoning") -> bool:
        """Returns whether its error is smaller now than that of one made before."""
        drifted_ns = MAX_DRIFT * (self.at_ns - before.at_ns)
        return self.way_ns / 2 < before.way_ns / 2 + drifted_ns


def reckon(sent_ns: int, heard_ns: int, answered_ns: int, now_ns: int) -> Reckoning:
    """Estimates the offset of a clock as NTP does, from the times at which a beat passed both ends.

    The first and the last are of our clock, the two others of the other node's.
    """
    way = (now_ns - sent_ns) - (answered_ns - heard_ns)
    return Reckoning(way, ((heard_ns - sent_ns) + (answered_ns - now_ns)) // 2, now_ns)
