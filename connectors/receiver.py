"""The receiving end of a ring: chunks out, credit back."""

import select
from collections.abc import Sequence
from typing import Generic

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.codec import decode
from omnistage.connectors.contract import ChannelClosed
from omnistage.connectors.messages import M, Messages, UnknownMessage
from omnistage.connectors.ring import NO_SLOT, Ring
from omnistage.connectors.ring_end import RingAccess, RingEnd

ALL = 1 << 30


class _Held:
    """Chunks of one request, in one slot, that were received and not yet granted back."""

    __slots__ = ("num_chunks", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.num_chunks = 1


class RingReceiver(RingEnd, Generic[M]):
    """The receiving end."""

    def __init__(self, access: RingAccess, messages: Messages[M]) -> None:
        super().__init__(access)
        self._messages = messages
        self._attach(self._ring)

    def _attach(self, ring: Ring) -> None:
        self._ring = ring
        self._held: dict[str, list[_Held]] = {}
        self._owes_wake_up = False
        self._is_in_place = False  # the last chunk is still in the ring

    def _follow(self) -> None:
        """Go over to the new ring; what the old one held is never delivered."""
        if self._is_closed:
            raise ChannelClosed("this receiver is closed")
        while self._ring.is_renewed:
            ring = Ring(self._reopen())
            with self._lock:
                self._ring.release()
                self._attach(ring)

    def receive(self) -> Chunk[M] | None:
        """The next chunk, copied out once, or in place."""
        self._follow()
        if self._is_in_place:
            self._is_in_place = False
            self._ring.release_read()
        if self._ring.num_used == 0:
            if self._owes_wake_up:
                self._owes_wake_up = False
                self._has_room.set()
            self._has_chunk.clear()
            self._follow()  # what was just cleared may have told of a renewal
            if self._ring.num_used == 0:
                return None
        slot, header, body = self._ring.read()
        self._owes_wake_up = True
        try:
            chunk = decode(header, body, self._messages)
            self._is_in_place = chunk.message.in_place
        except UnknownMessage:
            self._ring.release_read()
            if slot != NO_SLOT:  # what is dropped holds no credit
                self._ring.grant(slot, 1)
                self._has_room.set()
            raise
        if not self._is_in_place:
            self._ring.release_read()
        if self._ring.num_used >= self._ring.num_bytes // 4:
            self._has_room.set()  # a sender need not wait until all is read
        if slot != NO_SLOT:
            self._hold(chunk.request_id, slot)
        return chunk

    def _hold(self, request_id: str, slot: int) -> None:
        with self._lock:
            entries = self._held.setdefault(request_id, [])
            for held in entries:
                if held.slot == slot:
                    held.num_chunks += 1
                    return
            entries.append(_Held(slot))

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a chunk may be there."""
        self._follow()
        if self._ring.num_used:
            return True
        poller = select.poll()
        poller.register(self._has_chunk.fileno(), select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def fileno(self) -> int:
        """Readable when a chunk may be there."""
        return self._has_chunk.fileno()

    def grant(self, request_id: str, num_chunks: int = 1) -> None:
        """Give credit back; no more than the request's chunks hold."""
        self._give_back([request_id], num_chunks)

    def grant_each(self, request_ids: Sequence[str]) -> None:
        """Give credit back for one chunk of each."""
        self._give_back(request_ids, 1)

    def forget(self, request_id: str) -> None:
        """Give everything back."""
        self._give_back([request_id], ALL)

    def _give_back(self, request_ids: Sequence[str], num_chunks: int) -> None:
        with self._lock:
            if self._is_closed or self._ring.is_renewed:
                return
            is_any_held = False
            for request_id in request_ids:
                entries = self._held.get(request_id)
                if entries is not None:
                    self._give_back_of(request_id, entries, num_chunks)
                    is_any_held = True
            if is_any_held:
                self._has_room.set()

    def _give_back_of(self, request_id: str, entries: list[_Held], num_chunks: int) -> None:
        while entries and num_chunks > 0:
            held = entries[0]
            given = min(num_chunks, held.num_chunks)
            held.num_chunks -= given
            num_chunks -= given
            self._ring.grant(held.slot, given)
            if held.num_chunks == 0:
                entries.pop(0)
        if not entries:
            del self._held[request_id]

    @property
    def num_requests(self) -> int:
        """Requests that hold credit."""
        with self._lock:
            return 0 if self._is_closed else len(self._held)
