"""This node's half of a channel: its ring, kept the same as the other node's.

The bytes of the sender's ring are copied to the same places of the receiver's, with its head; the
receiver's tail and what it granted are copied back. Each word of a ring still has one writer: the
end that is on its node, or the link in place of the other end.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from omnistage.connectors.codec import PREFIX
from omnistage.connectors.ring import (
    BACKLOG_NS,
    CLOCK_AHEAD_NS,
    FIRST_SLOT,
    HEAD,
    JOINED,
    NUM_BACKLOG,
    NUM_RECEIVED,
    NUM_SENT,
    NUM_SLOTS,
    RESTART,
    SENT_BYTES,
    SKIP,
    TAIL,
    WAIT_NS,
    WORD,
)
from omnistage.connectors.tcp.frames import (
    BACK,
    DATA,
    FRAME,
    GRANTED,
    PIECE,
    PLACE,
    READ,
    WRITTEN,
    BadFrame,
    frame,
)
from omnistage.connectors.tcp.frames import HEAD as HEAD_FRAME
from omnistage.connectors.tcp.half import HalfRing

Buffer = bytes | memoryview


class Half(Protocol):
    """The part of a half that a connection uses."""

    def speak(self) -> tuple[list[Buffer], bool]:
        """Returns what to send now, and whether there may be more."""


class SenderHalf(HalfRing):
    """The half on the node of the sender: what it writes is sent on.

    `_sent` is how far, as the head counts; a run is bytes in one place that are being sent, and
    after a run that ends with a record the head is told, so that its receiver may begin.
    """

    def _begin(self) -> None:
        self._sent = 0
        self._position = self._left = 0
        self._is_whole = False

    def fileno(self) -> int:
        """Readable when the sender has written, or the ring is renewed: then call `awake`."""
        return self._has_chunk.fileno()

    def awake(self) -> bool:
        """Take the wake-up; whether the ring is a new one."""
        self._has_chunk.clear()
        return self.follow()

    def speak(self) -> tuple[list[Buffer], bool]:
        """The next piece of the run, and the head after its last."""
        if not self.is_joined or not (self._left or self._plan()):
            return [], False
        size = min(self._left, PIECE)
        end = self._position + size
        header = FRAME.pack(DATA, self.number, self.generation, PLACE.size + size)
        parts: list[Buffer] = [
            header + PLACE.pack(self._position),
            self._records[self._position : end],
        ]
        self._position, self._left = end, self._left - size
        if not self._left and self._is_whole:
            parts.append(self._written())
        return parts, True

    def _plan(self) -> bool:
        """Begin the next run; whether there is one."""
        head, at = self._words[HEAD], self._sent
        if at == head:
            return False
        if at % self.size and at == self._words[RESTART]:
            at += self.size - at % self.size
        self._position = at % self.size
        self._is_whole = True
        if head - at <= min(PIECE, self.size - self._position):
            end = self._sent = head
        else:
            end = self._cut(at, head)
        self._left = end - at
        return True

    def _cut(self, start: int, head: int) -> int:
        """Where a run ends that has about a piece, or one record that is larger.

        A mark that sends the reader to the start is a run of its own, and no end of a record.
        """
        at = start
        while at < head and at - start < PIECE:
            position = at % self.size
            num_bytes = PREFIX.unpack_from(self._records, position)[0]
            if num_bytes == SKIP:
                if at == start:
                    self._sent = at + self.size - position
                    self._is_whole = False
                    return at + PREFIX.size
                break
            at += num_bytes
            if at % self.size == 0:
                break
        self._sent = at
        return at

    def _written(self) -> bytes:
        words = self._words
        body = WRITTEN.pack(
            self._sent,
            words[RESTART],
            words[NUM_SENT],
            words[SENT_BYTES],
            words[BACKLOG_NS],
            words[NUM_BACKLOG],
        )
        return frame(HEAD_FRAME, self.number, self.generation, body)

    def take_back(self, body: bytes) -> None:
        """Takes the chunks and credit that the receiver gave back; wakes the sender."""
        words = self._words
        tail, words[NUM_RECEIVED], words[WAIT_NS] = READ.unpack_from(body)
        for slot, granted in GRANTED.iter_unpack(body[READ.size :]):
            if slot >= NUM_SLOTS:
                raise BadFrame(f"credit for slot {slot}")
            words[FIRST_SLOT + slot] = granted
        words[TAIL] = tail
        self._has_room.set()


class ReceiverHalf(HalfRing):
    """The half on the node of the receiver: filled by the link; what is read, granted goes back.

    Its ring may have been renewed more often than the sender's before they were joined. So the two
    count from where they first met: nothing that waits at the sender is lost for it.
    """

    _ahead: int | None = None  # of the sender's generation

    def meet(self, generation: int) -> None:
        """The sender's ring has this generation: come to it, if ours is an older one."""
        if self._ahead is None:
            self._ahead = self.generation - generation
        if generation > self.shared_generation:
            self.renew(generation + self._ahead)

    @property
    def shared_generation(self) -> int:
        """The ring's, as the sender's node counts; -1 before the two have met."""
        return -1 if self._ahead is None else self.generation - self._ahead

    def _begin(self) -> None:
        self._is_filled = False
        self._said: Sequence[int] = (0, 0, 0)
        self._granted = bytes(8 * NUM_SLOTS)

    def fileno(self) -> int:
        """Readable when the receiver has read, or the ring is renewed: then call `awake`."""
        return self._has_room.fileno()

    def awake(self) -> bool:
        """Take the wake-up; whether the ring is a new one."""
        self._has_room.clear()
        return self.follow()

    def lose(self) -> None:
        """Ends as a sender does; a ring that got nothing has lost nothing.

        Its sender may not know yet that it was joined: then what waits there stays, and comes.
        """
        if not self._is_filled:
            self.is_joined = False
            self._words[JOINED] = 0
        super().lose()

    def place(self, position: int, num_bytes: int) -> memoryview:
        """Where bytes of the sender's ring belong."""
        if position + num_bytes > self.size:
            raise BadFrame(f"{num_bytes} bytes at {position} of a ring of {self.size}")
        self._is_filled = True
        return self._records[position : position + num_bytes]

    def publish(self, body: bytes) -> None:
        """The ring is filled so far; wakes the receiver."""
        words = self._words
        head, restart, num_sent, sent_bytes, backlog_ns, num_backlog = WRITTEN.unpack(body)
        words[NUM_SENT], words[SENT_BYTES] = num_sent, sent_bytes
        words[BACKLOG_NS], words[NUM_BACKLOG] = backlog_ns, num_backlog
        words[RESTART] = restart
        words[HEAD] = head
        self._has_chunk.set()

    def set_clock(self, ahead_ns: int) -> None:
        """How far the clock of this node is ahead of the sender's."""
        self._words[CLOCK_AHEAD_NS] = ahead_ns % WORD

    def speak(self) -> tuple[list[Buffer], bool]:
        """Returns what was read and granted since it was last said."""
        words = self._words
        granted = words[FIRST_SLOT : FIRST_SLOT + NUM_SLOTS].tobytes()
        read = words[TAIL], words[NUM_RECEIVED], words[WAIT_NS]
        if not self.is_joined or (read == self._said and granted == self._granted):
            return [], False
        body = READ.pack(*read) + self._changed(granted)
        self._said, self._granted = read, granted
        return [frame(BACK, self.number, self.shared_generation, body)], False

    def _changed(self, granted: bytes) -> bytes:
        if granted == self._granted:
            return b""
        now, before = np.frombuffer(granted, "<u8"), np.frombuffer(self._granted, "<u8")
        slots = (now != before).nonzero()[0].tolist()
        return b"".join(GRANTED.pack(slot, now[slot]) for slot in slots)
