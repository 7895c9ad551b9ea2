"""A ring of records in a shared buffer, with a table of credits: both ends of every channel.

Layout: head and tail (bytes ever written and read) at 0 and 8, a mark at 16, one granted-counter
for each of NUM_SLOTS requests, then the ring. Head and slots' meaning belong to the sender, tail
and counters to the receiver; each is one aligned 8-byte store, made after what it announces. A
record never wraps: where it does not fit before the end, a mark sends the reader to the start.

When the process of one end has died, the channel gets a new, empty ring and the old one is marked:
the end that lives goes over at its next use and forgets all that belonged to the old ring.
"""

import select
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.codec import decode, encode
from omnistage.connectors.contract import ChunkTooLarge, Closed, Full

NUM_SLOTS = 1024
HEAD, TAIL, RENEWED, FIRST_SLOT = 0, 1, 2, 3  # in 8-byte words
RING_START = 8 * (FIRST_SLOT + NUM_SLOTS)
PREFIX = struct.Struct("<QII")  # record bytes, header bytes, slot
SKIP = (1 << 64) - 1
NO_SLOT = NUM_SLOTS
MAX_BACKLOG_CHUNKS = 1024
MAX_BACKLOG_BYTES = 64 << 20


class Event(Protocol):
    """A wake-up between processes: a file descriptor that stays readable until cleared."""

    def set(self) -> None:
        """Make it readable."""

    def clear(self) -> None:
        """Make it unreadable."""

    def fileno(self) -> int:
        """What to wait on."""

    def close(self) -> None:
        """Let go of it."""


class _Outgoing:
    """One request as its sender sees it."""

    __slots__ = ("backlog", "base", "has_ended", "num_bytes", "num_sent", "slot")

    def __init__(self) -> None:
        self.slot = NO_SLOT
        self.base = 0
        self.num_sent = 0
        self.backlog: deque[tuple[Chunk, int]] = deque()  # with their bytes
        self.num_bytes = 0
        self.has_ended = False


class RingSender:
    """The sending end; its lock makes it safe for several threads."""

    def __init__(
        self,
        buffer: memoryview,
        window: int,
        has_chunk: Event,
        has_room: Event,
        reopen: Callable[[], memoryview],
    ) -> None:
        self._window = window
        self._has_chunk, self._has_room, self._reopen = has_chunk, has_room, reopen
        self._lock = threading.Lock()
        self._lost: set[str] = set()
        self._attach(buffer)
        self._is_closed = False

    def _attach(self, buffer: memoryview) -> None:
        self._words = buffer[:RING_START].cast("Q")
        self._ring = buffer[RING_START:]
        self._size = len(self._ring) & ~7
        self._requests: OrderedDict[str, _Outgoing] = OrderedDict()
        self._ending: list[_Outgoing] = []
        self._free_slots = list(range(NUM_SLOTS - 1, -1, -1))

    def _follow(self) -> None:
        """Go over to the new ring; what its receiver never saw the start of is not sent on."""
        while self._words[RENEWED]:
            buffer = self._reopen()
            self._lost.update(self._requests)
            self._words.release()
            self._ring.release()
            self._attach(buffer)

    def send(self, chunk: Chunk) -> None:
        """Send now or put into the request's backlog."""
        with self._lock:
            if self._is_closed:
                raise Closed("this sender is closed")
            self._follow()
            if chunk.request_id in self._lost:
                if chunk.last:
                    self._lost.remove(chunk.request_id)
                return
            header, buffers = encode(chunk)
            self._check_size(chunk, header)
            request = self._requests.get(chunk.request_id)
            if request is None:
                request = self._requests[chunk.request_id] = _Outgoing()
            if not request.backlog and self._try_write(request, chunk, header, buffers):
                return
            size = len(header) + chunk.num_bytes
            is_full = len(request.backlog) >= MAX_BACKLOG_CHUNKS
            if request.backlog and (is_full or request.num_bytes + size > MAX_BACKLOG_BYTES):
                raise Full(
                    f"request {chunk.request_id} has {len(request.backlog)} chunks and "
                    f"{request.num_bytes} bytes waiting: nobody takes them"
                )
            request.backlog.append((chunk, size))
            request.num_bytes += size

    def flush(self) -> int:
        """Send what can go, one chunk a request in turn."""
        with self._lock:
            if self._is_closed:
                return 0
            self._has_room.clear()
            self._follow()
            self._reap()
            is_moving = True
            while is_moving:
                is_moving = False
                for request in [r for r in self._requests.values() if r.backlog]:
                    chunk, size = request.backlog[0]
                    if self._try_write(request, chunk, *encode(chunk)):
                        request.backlog.popleft()
                        request.num_bytes -= size
                        is_moving = True
                        if request.has_ended and request.backlog:  # the id was used again
                            following = self._requests[chunk.request_id] = _Outgoing()
                            following.backlog = request.backlog
                            following.num_bytes = request.num_bytes
            return sum(len(request.backlog) for request in self._requests.values())

    def credit(self, request_id: str) -> int:
        """Chunks that may go now without queueing."""
        with self._lock:
            if self._is_closed:
                return 0
            self._follow()
            request = self._requests.get(request_id)
            if self._window == 0:
                return 0 if request is not None and request.backlog else 1 << 30
            if request is None:
                return self._window
            return max(0, self._credit(request) - len(request.backlog))

    def forget(self, request_id: str) -> None:
        """Drop the backlog."""
        with self._lock:
            if self._is_closed:
                return
            self._lost.discard(request_id)
            request = self._requests.get(request_id)
            if request is not None:
                request.backlog.clear()
                self._end(request_id, request)

    @property
    def num_requests(self) -> int:
        """Requests that hold a slot or a backlog."""
        with self._lock:
            if self._is_closed:
                return 0
            self._reap()
            return len(self._requests) + len(self._ending)

    def fileno(self) -> int:
        """Readable when credit or room came back."""
        return self._has_room.fileno()

    def close(self) -> None:
        """Close this end."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._words.release()
            self._ring.release()
        self._has_chunk.close()
        self._has_room.close()

    def _check_size(self, chunk: Chunk, header: bytes) -> None:
        num_bytes = PREFIX.size + len(header) + chunk.num_bytes
        if num_bytes > self._size // 2:  # more might never fit before or after the end
            raise ChunkTooLarge(
                f"a {chunk.kind} chunk of {num_bytes} bytes; this channel takes at most "
                f"{self._size // 2}: raise its arena_mb"
            )

    def _credit(self, request: _Outgoing) -> int:
        if request.slot == NO_SLOT:
            return self._window - request.num_sent
        granted = self._words[FIRST_SLOT + request.slot] - request.base
        return self._window + granted - request.num_sent

    def _try_write(self, request: _Outgoing, chunk: Chunk, header: bytes, buffers: Any) -> bool:
        if self._window and request.slot == NO_SLOT:
            if not self._free_slots:
                self._reap()
            if not self._free_slots:
                return False
            request.slot = self._free_slots.pop()
            request.base = self._words[FIRST_SLOT + request.slot]
        if self._window and self._credit(request) <= 0:
            return False
        if not self._write(request.slot, header, buffers, chunk.num_bytes):
            return False
        request.num_sent += 1
        if chunk.last:
            self._end(chunk.request_id, request)
        self._has_chunk.set()
        return True

    def _write(self, slot: int, header: bytes, buffers: Any, body_bytes: int) -> bool:
        head, tail = self._words[HEAD], self._words[TAIL]
        num_bytes = (PREFIX.size + len(header) + body_bytes + 7) & ~7
        position = head % self._size
        to_end = self._size - position
        skipped = to_end if to_end < num_bytes else 0
        if head == tail and num_bytes <= position:
            skipped = to_end  # empty: start anew, so that only as many pages are used as are needed
        if self._size - (head - tail) < num_bytes + skipped:
            return False
        if skipped:
            if skipped >= PREFIX.size:
                PREFIX.pack_into(self._ring, position, SKIP, 0, 0)
            position = 0
        PREFIX.pack_into(self._ring, position, num_bytes, len(header), slot)
        start = position + PREFIX.size
        self._ring[start : start + len(header)] = header
        start += len(header)
        for buffer in buffers:
            end = start + memoryview(buffer).nbytes
            self._ring[start:end] = buffer
            start = end
        self._words[HEAD] = head + skipped + num_bytes
        return True

    def _end(self, request_id: str, request: _Outgoing) -> None:
        request.has_ended = True
        self._requests.pop(request_id, None)
        if request.slot != NO_SLOT:
            self._ending.append(request)
            self._reap()

    def _reap(self) -> None:
        """A slot is free again when all its credit is back."""
        still = []
        for request in self._ending:
            if self._words[FIRST_SLOT + request.slot] - request.base == request.num_sent:
                self._free_slots.append(request.slot)
            else:
                still.append(request)
        self._ending = still


class _Incoming:
    """Chunks of one request that were received and not yet granted back."""

    __slots__ = ("num_held", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.num_held = 0


class RingReceiver:
    """The receiving end."""

    def __init__(
        self,
        buffer: memoryview,
        has_chunk: Event,
        has_room: Event,
        reopen: Callable[[], memoryview],
    ) -> None:
        self._has_chunk, self._has_room, self._reopen = has_chunk, has_room, reopen
        self._lock = threading.Lock()
        self._attach(buffer)
        self._is_closed = False

    def _attach(self, buffer: memoryview) -> None:
        self._words = buffer[:RING_START].cast("Q")
        self._ring = buffer[RING_START:]
        self._size = len(self._ring) & ~7
        self._held: dict[tuple[str, int], _Incoming] = {}
        self._by_id: dict[str, list[_Incoming]] = {}
        self._owes_wake_up = False

    def _follow(self) -> None:
        """Go over to the new ring; what the old one held is never delivered."""
        while self._words[RENEWED]:
            buffer = self._reopen()
            with self._lock:
                self._words.release()
                self._ring.release()
                self._attach(buffer)

    def receive(self) -> Chunk | None:
        """The next chunk, copied out once."""
        if self._is_closed:
            raise Closed("this receiver is closed")
        self._follow()
        if self._words[HEAD] == self._words[TAIL]:
            if self._owes_wake_up:
                self._owes_wake_up = False
                self._has_room.set()
            self._has_chunk.clear()
            self._follow()  # what was just cleared may have told of a renewal
            if self._words[HEAD] == self._words[TAIL]:
                return None
        tail = self._words[TAIL]
        position = tail % self._size
        if self._size - position < PREFIX.size:
            tail, position = tail + self._size - position, 0
        num_bytes, header_bytes, slot = PREFIX.unpack_from(self._ring, position)
        if num_bytes == SKIP:
            tail, position = tail + self._size - position, 0
            num_bytes, header_bytes, slot = PREFIX.unpack_from(self._ring, position)
        is_half_full = self._words[HEAD] - tail >= self._size // 2
        start = position + PREFIX.size
        record = memoryview(bytes(self._ring[start : position + num_bytes]))
        self._words[TAIL] = tail + num_bytes
        self._owes_wake_up = True
        if is_half_full:
            self._has_room.set()
        chunk = decode(record[:header_bytes], record[header_bytes:])
        if slot != NO_SLOT:
            self._hold(chunk.request_id, slot)
        return chunk

    def _hold(self, request_id: str, slot: int) -> None:
        with self._lock:
            held = self._held.get((request_id, slot))
            if held is None:
                held = self._held[request_id, slot] = _Incoming(slot)
                self._by_id.setdefault(request_id, []).append(held)
            held.num_held += 1

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a chunk may be there."""
        if self._is_closed:
            raise Closed("this receiver is closed")
        self._follow()
        if self._words[HEAD] != self._words[TAIL]:
            return True
        poller = select.poll()
        poller.register(self._has_chunk.fileno(), select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def fileno(self) -> int:
        """Readable when a chunk may be there."""
        return self._has_chunk.fileno()

    def grant(self, request_id: str, num_chunks: int = 1) -> None:
        """Give credit back; no more than the request's chunks hold."""
        self._give_back(request_id, num_chunks)

    def forget(self, request_id: str) -> None:
        """Give everything back."""
        self._give_back(request_id, 1 << 30)

    def _give_back(self, request_id: str, num_chunks: int) -> None:
        with self._lock:
            if self._is_closed or self._words[RENEWED] or request_id not in self._by_id:
                return
            entries = self._by_id[request_id]
            while entries and num_chunks > 0:
                held = entries[0]
                given = min(num_chunks, held.num_held)
                held.num_held -= given
                num_chunks -= given
                self._words[FIRST_SLOT + held.slot] += given
                if held.num_held == 0:
                    entries.pop(0)
                    del self._held[request_id, held.slot]
            if not entries:
                del self._by_id[request_id]
            self._has_room.set()

    @property
    def num_requests(self) -> int:
        """Requests that hold credit."""
        with self._lock:
            return 0 if self._is_closed else len(self._by_id)

    def close(self) -> None:
        """Close this end."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._words.release()
            self._ring.release()
        self._has_chunk.close()
        self._has_room.close()


def mark_renewed(buffer: memoryview) -> None:
    """Send both ends of a ring on to the one that has taken its place."""
    words = buffer[:RING_START].cast("Q")
    words[RENEWED] = 1
    words.release()
