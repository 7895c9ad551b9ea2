"""Counts what is in a JSON body before anyone parses it: to look at millions takes seconds.

Commas and colons are counted, at the speed of memory. Those inside of strings are told apart only
where there are so many that it matters.
"""

from dataclasses import dataclass

import numpy as np

from omnistage.server.common.errors import ApiError

MAX_KEYS = 1 << 17
MAX_CONTAINERS = 1 << 17  # lists and objects
MAX_VALUES = 1 << 20
PIECE_BYTES = 1 << 20
QUOTE, COMMA, COLON, LIST, OBJECT = b'",:[{'


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is in a body; of values those that follow another."""

    num_keys: int
    num_containers: int
    num_values: int

    @property
    def fit(self) -> bool:
        """Returns whether a body may have so many."""
        return (
            self.num_keys <= MAX_KEYS
            and self.num_containers <= MAX_CONTAINERS
            and self.num_values <= MAX_VALUES
        )


def check_counts(data: bytes) -> None:
    """Raise ApiError for a body of too much; of no use for what is no JSON."""
    if Counts(data.count(b":"), data.count(b"[") + data.count(b"{"), data.count(b",")).fit:
        return
    counts = counted(data)
    if not counts.fit:
        message = (
            f"The body has {counts.num_keys} keys, {counts.num_containers} lists and objects, and "
            f"{counts.num_values} values; at most {MAX_KEYS}, {MAX_CONTAINERS} and {MAX_VALUES}."
        )
        raise ApiError(400, message, code="too_many_values")


def counted(data: bytes) -> Counts:
    """Returns what is outside of strings."""
    without_escapes = data.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    codes = np.frombuffer(without_escapes, np.uint8)
    num_keys = num_containers = num_values = 0
    is_inside = False
    for start in range(0, len(codes), PIECE_BYTES):
        piece = codes[start : start + PIECE_BYTES]
        inside = np.logical_xor.accumulate(piece == QUOTE) ^ is_inside
        outside = piece[~inside]
        num_keys += int(np.count_nonzero(outside == COLON))
        num_containers += int(np.count_nonzero((outside == LIST) | (outside == OBJECT)))
        num_values += int(np.count_nonzero(outside == COMMA))
        is_inside = bool(inside[-1])
    return Counts(num_keys, num_containers, num_values)
