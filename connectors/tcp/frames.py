"""Frames between two links: a fixed header, then as many bytes as it counts.

The node of a channel's sender names the channel by a number of its own in `JOIN`; every other frame
has that number and the generation of the rings that it is about. One of another generation is
dropped. All numbers are little-endian, as the words of a ring are.
"""

import struct

FRAME = struct.Struct("<BxxxIQQ")  # kind, channel, generation, bytes that follow
# By the sender's node: a channel that it has (size of its ring, its name); bytes of the ring and
# where they belong; how far the ring is written; a channel that it has no longer (its name).
JOIN, DATA, HEAD, PART = 1, 2, 3, 4
# By the receiver's node: its ring has this generation now; what was read and granted.
JOINED, BACK = 5, 6
BEAT = 7  # by both: a sign of life, and readings of the clocks

JOINING = struct.Struct("<Q")
PLACE = struct.Struct("<Q")
WRITTEN = struct.Struct("<6Q")  # head, restart and the sender's counts
READ = struct.Struct("<3Q")  # tail and the receiver's counts; then (slot, granted) of each change
GRANTED = struct.Struct("<2Q")
READINGS = struct.Struct("<3Q")  # sent now; the last beat of the other was sent, received

PIECE = 256 << 10  # of a ring, in one frame: what another channel waits for at most
MAX_CONTROL = 24 << 10  # of any other frame


class BadFrame(Exception):
    """A peer said what no link says."""


def frame(kind: int, channel: int = 0, generation: int = 0, body: bytes = b"") -> bytes:
    """One that is no `DATA`."""
    return FRAME.pack(kind, channel, generation, len(body)) + body
