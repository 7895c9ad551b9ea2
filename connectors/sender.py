"""The sending end of a ring: credit, and what waits for it."""

import time
from collections import OrderedDict, deque

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.codec import Record, encode
from omnistage.connectors.contract import ChannelClosed, ChunkTooLarge, Full
from omnistage.connectors.ring import NO_SLOT, NUM_SLOTS, Ring
from omnistage.connectors.ring_end import RingAccess, RingEnd

MAX_BACKLOG_CHUNKS = 1024
MAX_BACKLOG_BYTES = 64 << 20
UNLIMITED = 1 << 30


class _Request:
    """One request as its sender sees it."""

    __slots__ = ("backlog", "base", "num_bytes", "num_sent", "slot")

    def __init__(self) -> None:
        self.slot = NO_SLOT
        self.base = 0
        self.num_sent = 0
        self.backlog: deque[Record] = deque()
        self.num_bytes = 0


class RingSender(RingEnd):
    """The sending end; its lock makes it safe for several threads."""

    def __init__(self, address: str, window: int, access: RingAccess) -> None:
        super().__init__(access)
        self._address = address
        self._window = window
        self._lost: set[str] = set()
        self._attach(self._ring)

    def _attach(self, ring: Ring) -> None:
        self._ring = ring
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._ending: list[_Request] = []
        self._free_slots = list(range(NUM_SLOTS - 1, -1, -1))

    def _follow(self) -> None:
        """Go over to the new ring; what its receiver never saw the start of is not sent on."""
        while self._ring.is_renewed:
            ring = Ring(self._reopen())
            self._lost.update(self._requests)
            self._ring.release()
            self._attach(ring)

    def send(self, chunk: Chunk) -> None:
        """Send now or put into the request's backlog."""
        with self._lock:
            self._put(chunk, may_wait=True)

    def offer(self, chunk: Chunk) -> bool:
        """Send now, or return False: nothing waits."""
        with self._lock:
            return self._put(chunk, may_wait=False)

    def _put(self, chunk: Chunk, may_wait: bool) -> bool:
        if self._is_closed:
            raise ChannelClosed("this sender is closed")
        self._follow()
        if chunk.request_id in self._lost:
            if chunk.last:
                self._lost.remove(chunk.request_id)
            return True
        record = encode(chunk)
        self._check_size(chunk, record.num_bytes)
        request = self._requests.get(chunk.request_id)
        if request is None:
            request = self._requests[chunk.request_id] = _Request()
        if not request.backlog and self._try_write(request, record):
            if record.is_last:
                self._end(chunk.request_id, request)
        elif may_wait:
            self._queue(chunk.request_id, request, record)
        else:
            return False
        return True

    def _check_size(self, chunk: Chunk, num_bytes: int) -> None:
        if num_bytes > self._ring.max_record_bytes:
            raise ChunkTooLarge(
                f"a {type(chunk.message).__name__} of {num_bytes} bytes; channel {self._address} "
                f"takes at most {self._ring.max_record_bytes}, half of its arena_mb"
            )

    def _queue(self, request_id: str, request: _Request, record: Record) -> None:
        """Whatever has credit may wait for room: its number is bounded by the credit."""
        num_bytes = request.num_bytes + record.num_bytes
        is_full = len(request.backlog) >= MAX_BACKLOG_CHUNKS or num_bytes > MAX_BACKLOG_BYTES
        if request.backlog and is_full and not self._has_credit_left(request):
            raise Full(
                f"request {request_id} has {len(request.backlog)} chunks and "
                f"{request.num_bytes} bytes waiting: nobody takes them"
            )
        request.backlog.append(record)
        request.num_bytes = num_bytes
        self._ring.count_backlog(1)

    def _has_credit_left(self, request: _Request) -> bool:
        """Returns whether the receiver has granted more chunks than those that wait here."""
        return self._window > 0 and self._credit(request) > len(request.backlog)

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
                waiting = [item for item in self._requests.items() if item[1].backlog]
                is_moving = sum(self._send_waiting(*item) for item in waiting) > 0
            return sum(len(request.backlog) for request in self._requests.values())

    def credit(self, request_id: str) -> int:
        """Chunks that may go now without queueing."""
        with self._lock:
            if self._is_closed:
                return 0
            self._follow()
            request = self._requests.get(request_id)
            if self._window == 0:
                return 0 if request is not None and request.backlog else UNLIMITED
            if request is None:
                return self._window
            return 0 if request.backlog else max(0, self._credit(request))

    def forget(self, request_id: str) -> None:
        """Drop the backlog."""
        with self._lock:
            if self._is_closed:
                return
            self._lost.discard(request_id)
            request = self._requests.get(request_id)
            if request is not None:
                self._ring.count_backlog(-len(request.backlog))
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

    def _credit(self, request: _Request) -> int:
        if request.slot == NO_SLOT:
            return self._window - request.num_sent
        return self._window + self._ring.granted(request.slot) - request.base - request.num_sent

    def _send_waiting(self, request_id: str, request: _Request) -> bool:
        record = request.backlog[0]
        if not self._try_write(request, record):
            return False
        request.backlog.popleft()
        request.num_bytes -= record.num_bytes
        self._ring.count_backlog(-1, time.monotonic_ns() - record.made_ns)
        if record.is_last:
            self._end(request_id, request)
        return True

    def _try_write(self, request: _Request, record: Record) -> bool:
        if self._window and not self._may_send(request):
            return False
        if not self._ring.write(request.slot, record):
            return False
        request.num_sent += 1
        self._has_chunk.set()
        return True

    def _may_send(self, request: _Request) -> bool:
        if request.slot == NO_SLOT:
            if not self._free_slots:
                self._reap()
            if not self._free_slots:
                return False
            request.slot = self._free_slots.pop()
            request.base = self._ring.granted(request.slot)
        return self._credit(request) > 0

    def _end(self, request_id: str, request: _Request) -> None:
        """The request has no more to send; what is queued behind its end is a request anew."""
        del self._requests[request_id]
        if request.backlog:
            following = self._requests[request_id] = _Request()
            following.backlog, following.num_bytes = request.backlog, request.num_bytes
        if request.slot != NO_SLOT:
            self._ending.append(request)
            self._reap()

    def _reap(self) -> None:
        """A slot is free again when all its credit is back."""
        still = []
        for request in self._ending:
            if self._ring.granted(request.slot) - request.base == request.num_sent:
                self._free_slots.append(request.slot)
            else:
                still.append(request)
        self._ending = still
