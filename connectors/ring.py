"""A ring of records in a shared buffer, with a table of credits: what a channel's two ends share.

Layout: head, tail (bytes ever written and read), a mark and the last restart, each in a cache line
of its own, a granted-counter for each of NUM_SLOTS requests, then the records. Beside head and
tail, in their cache lines, each end counts what it sent or received: who maps the ring reads it.
Head, restart and the slots' meaning belong to the sender, tail and the counters to the receiver;
each is one aligned 8-byte store, made after what it announces. A record starts at a multiple of
ALIGNMENT and never wraps: where it does not fit before the end, a mark in its prefix's place sends
the reader to the start. An empty ring starts anew, so that only as many pages are used as are
needed: the reader jumps where it stands at `RESTART`, and what is jumped over takes no room.

When the process of one end has died, the channel gets a new, empty ring and the old one is marked:
the end that lives goes over at its next use and forgets all that belonged to the old ring. Beside
the mark is the ring's generation, which grows with each renewal, and what a link to another node
keeps there: whether it has joined the ring, and how far the receiver's clock is ahead of the
sender's.
"""

import os
import time
from abc import ABC, abstractmethod

from omnistage.connectors.chunk import Filling
from omnistage.connectors.codec import ALIGNMENT, PREFIX, Record, aligned
from omnistage.connectors.contract import ChannelUsage

NUM_SLOTS = 1024
HEAD, TAIL, RENEWED, RESTART, FIRST_SLOT = 0, 8, 16, 24, 32  # in 8-byte words
NUM_SENT, SENT_BYTES, BACKLOG_NS, NUM_BACKLOG = HEAD + 1, HEAD + 2, HEAD + 3, HEAD + 4
NUM_RECEIVED, WAIT_NS = TAIL + 1, TAIL + 2
GENERATION, JOINED, CLOCK_AHEAD_NS = RENEWED + 1, RENEWED + 2, RENEWED + 3
RING_START = 8 * (FIRST_SLOT + NUM_SLOTS)
SKIP = (1 << 64) - 1
NO_SLOT = NUM_SLOTS
WORD = 1 << 64  # a clock that is behind is ahead by as much less than this


class WakeUp(ABC):
    """A wake-up between processes: a file descriptor that stays readable until cleared."""

    def __init__(self, file: int) -> None:
        self._file = file

    @abstractmethod
    def set(self) -> None:
        """Make it readable."""

    @abstractmethod
    def clear(self) -> None:
        """Make it unreadable."""

    def fileno(self) -> int:
        """Returns what to wait on."""
        return self._file

    def close(self) -> None:
        """Close our descriptor."""
        os.close(self._file)


class Ring:
    """One generation of a channel, over a buffer of RING_START bytes and the records' arena."""

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer[:RING_START].cast("Q")
        self._records = buffer[RING_START:]
        self.num_bytes = len(self._records) // ALIGNMENT * ALIGNMENT
        self._first = 0  # no byte before it is in use, wherever the tail still is; the sender's
        self._read_to = 0  # the end of the record that was read last; the receiver's

    @property
    def max_record_bytes(self) -> int:
        """A larger record might never fit, neither before the end nor after the start."""
        return self.num_bytes // 2 // ALIGNMENT * ALIGNMENT

    @property
    def num_used(self) -> int:
        """Bytes that are written and not yet read."""
        return self._words[HEAD] - self._words[TAIL]

    @property
    def is_renewed(self) -> bool:
        """Returns whether another ring has taken its place."""
        return bool(self._words[RENEWED])

    def mark_renewed(self) -> None:
        """Send both ends on to the ring that has taken its place."""
        self._words[RENEWED] = 1

    @property
    def generation(self) -> int:
        """How often the channel was renewed before it got this ring."""
        return self._words[GENERATION]

    def begin(self, generation: int) -> None:
        """Say of a ring that nobody uses yet which one it is."""
        self._words[GENERATION] = generation

    @property
    def is_joined(self) -> bool:
        """Returns whether a link has joined it to a ring of another node."""
        return bool(self._words[JOINED])

    def granted(self, slot: int) -> int:
        """Chunks ever granted to a slot's requests."""
        return self._words[FIRST_SLOT + slot]

    def grant(self, slot: int, num_chunks: int) -> None:
        """Grant chunks to the slot's request."""
        self._words[FIRST_SLOT + slot] += num_chunks

    def count_backlog(self, num_chunks: int, waited_ns: int = 0) -> None:
        """Chunks came into the sender's backlogs, or left them (negative) after so long a wait."""
        self._words[NUM_BACKLOG] += num_chunks
        self._words[BACKLOG_NS] += waited_ns

    @property
    def usage(self) -> ChannelUsage:
        """Returns what was counted, and what is in the ring."""
        return self.usage_read_by(self)

    def usage_read_by(self, receiver: "Ring") -> ChannelUsage:
        """The same of a channel of two joined rings, of which the sender's is this one."""
        words, received = self._words, receiver._words
        tail = self._read_from(received[TAIL])
        return ChannelUsage(
            num_sent=words[NUM_SENT],
            sent_bytes=words[SENT_BYTES],
            num_received=received[NUM_RECEIVED],
            wait_ns=received[WAIT_NS],
            backlog_ns=words[BACKLOG_NS],
            num_backlog=words[NUM_BACKLOG],
            used_bytes=max(0, words[HEAD] - tail),
            size_bytes=self.num_bytes,
        )

    def _read_from(self, tail: int) -> int:
        """Where the next record is: at the tail, or at the start if the ring began anew there."""
        position = tail % self.num_bytes
        if position and tail == self._words[RESTART]:
            return tail + self.num_bytes - position
        return tail

    def write(self, slot: int, record: Record) -> bool:
        """Append a record; False if there is no room."""
        head = self._words[HEAD]
        tail = max(self._words[TAIL], self._first)
        num_bytes = record.num_bytes
        position = head % self.num_bytes
        if head == tail and num_bytes <= position:
            self._words[RESTART] = head
            head = tail = self._first = head + self.num_bytes - position
            position = 0
        to_end = self.num_bytes - position
        skipped = to_end if to_end < num_bytes else 0
        if self.num_bytes - (head - tail) < num_bytes + skipped:
            return False
        if skipped:
            PREFIX.pack_into(self._records, position, SKIP, 0, 0, 0)
            position = 0
        header_bytes = len(record.header)
        PREFIX.pack_into(self._records, position, num_bytes, record.made_ns, header_bytes, slot)
        start = position + PREFIX.size
        self._records[start : start + header_bytes] = record.header
        for start, size, buffer in record.parts:
            place = self._records[position + start : position + start + size]
            if isinstance(buffer, Filling):
                buffer.fill(place)
            else:
                place[:] = buffer
        self._words[NUM_SENT] += 1
        self._words[SENT_BYTES] += num_bytes
        self._words[HEAD] = head + skipped + num_bytes
        return True

    def read(self) -> tuple[int, bytes, memoryview]:
        """Return the slot, header and body of the next record, which is there; the body is in the
        ring until `release_read`.
        """
        tail = self._read_from(self._words[TAIL])
        position = tail % self.num_bytes
        num_bytes, made_ns, header_bytes, slot = PREFIX.unpack_from(self._records, position)
        if num_bytes == SKIP:
            tail, position = tail + self.num_bytes - position, 0
            num_bytes, made_ns, header_bytes, slot = PREFIX.unpack_from(self._records, position)
        start, end = position + PREFIX.size, position + num_bytes
        header = bytes(self._records[start : start + header_bytes])
        start = position + aligned(PREFIX.size + header_bytes)
        self._words[NUM_RECEIVED] += 1
        self._words[WAIT_NS] += self._waited_ns(made_ns)
        self._read_to = tail + num_bytes
        return slot, header, self._records[start:end]

    def release_read(self) -> None:
        """Give the room of the record that was read back to the sender."""
        self._words[TAIL] = self._read_to

    def _waited_ns(self, made_ns: int) -> int:
        """From then until now; 0 if that is negative, as clocks of two nodes may have it."""
        waited = (time.monotonic_ns() - made_ns - self._words[CLOCK_AHEAD_NS]) % WORD
        return waited if waited < WORD // 2 else 0

    def release(self) -> None:
        """Let go of the buffer."""
        self._words.release()
        self._records.release()
