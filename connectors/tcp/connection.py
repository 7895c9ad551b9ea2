"""One connection between two links: first a handshake, then frames in both directions.

What is sent is gathered when it can go: nothing waits here but the piece that is under way. What
comes is read into the rings themselves as far as it is bytes of rings.
"""

import time
from collections.abc import Callable
from typing import Protocol

from omnistage.connectors.tcp.frames import DATA, FRAME, MAX_CONTROL, PIECE, PLACE, BadFrame
from omnistage.connectors.tcp.halves import Buffer, Half
from omnistage.connectors.tcp.handshake import Handshake, Identity
from omnistage.connectors.tcp.wire import Wire

STAGING_BYTES = 32 << 10  # more would copy more of a piece twice
NOWHERE = memoryview(bytearray(PIECE))  # for what no ring wants any more
READ_BYTES = 4 << 20  # at once, before others have their turn
MAX_PARTS = 256


class Hearer(Protocol):
    """Who gets what a connection brings."""

    def on_open(self, connection: "PeerConnection", peer: Identity) -> None:
        """The peer knows the secret."""

    def on_frame(
        self, connection: "PeerConnection", kind: int, channel: int, generation: int, body: bytes
    ) -> None:
        """A frame has come that is no bytes of a ring."""

    def place(
        self, connection: "PeerConnection", channel: int, generation: int, position: int, size: int
    ) -> memoryview | None:
        """Where bytes of a ring belong; None: nowhere any more."""


class PeerConnection:
    """It is open once the handshake is done; `peer` is who the other side is.

    `wants_write` is called when it is to be told that the socket takes more, and when no longer.
    """

    def __init__(
        self, wire: Wire, handshake: Handshake, hearer: Hearer, wants_write: Callable[[bool], None]
    ) -> None:
        self._wire = wire
        self._hearer = hearer
        self._wants_write = wants_write
        self._is_writing = False
        self._is_connected = False
        self._handshake: Handshake | None = handshake
        self._wanted = 0  # bytes of the handshake
        self.peer: Identity | None = None
        self.begun_at = self.heard_at = time.monotonic()
        self._frames: list[bytes] = []
        self._speaking: dict[Half, None] = {}
        self._parts: list[memoryview] = []
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._end = 0
        self._target: memoryview | None = None

    def fileno(self) -> int:
        """Returns what to wait on."""
        return self._wire.fileno()

    def shares_clock(self, ours: Identity) -> bool:
        """Returns whether the peer's machine is ours, and has not started again since."""
        return self.peer is not None and self.peer.boot == ours.boot

    def excuse(self, late_s: float, now: float) -> None:
        """Count no such time as silence: this process did not run itself."""
        self.begun_at = min(now, self.begun_at + late_s)
        self.heard_at = min(now, self.heard_at + late_s)

    def close(self) -> None:
        """Close the socket."""
        self._wire.close()

    # Out

    def say(self, said: bytes) -> None:
        """Send a frame soon, before all bytes of rings; `flush` sends it."""
        self._frames.append(said)

    def let_speak(self, half: Half) -> None:
        """A half may have something to say; `flush` asks it."""
        self._speaking[half] = None

    def silence(self, half: Half) -> None:
        """A half is gone."""
        self._speaking.pop(half, None)

    def flush(self) -> None:
        """Send what can go."""
        while self._parts or self._gather():
            sent = self._wire.write(self._parts)
            if sent == 0:
                break
            self._drop(sent)
        self._set_writing(bool(self._parts))

    def _set_writing(self, is_writing: bool) -> None:
        if is_writing != self._is_writing:
            self._is_writing = is_writing
            self._wants_write(is_writing)

    def _gather(self) -> bool:
        """Take what there is to say, in turn a piece of each; whether there is anything."""
        parts: list[Buffer] = [b"".join(self._frames)] if self._frames else []
        self._frames.clear()
        num_bytes = 0
        while self._speaking and self.peer and num_bytes < PIECE and len(parts) < MAX_PARTS:
            half = next(iter(self._speaking))
            del self._speaking[half]
            said, is_more = half.speak()
            parts += said
            num_bytes += sum(map(len, said))
            if is_more:
                self._speaking[half] = None
        self._parts = [memoryview(part) for part in parts]
        return bool(parts)

    def _drop(self, num_bytes: int) -> None:
        parts = self._parts
        while parts and num_bytes >= len(parts[0]):
            num_bytes -= len(parts.pop(0))
        if num_bytes:
            parts[0] = parts[0][num_bytes:]

    # In

    def on_ready(self) -> None:
        """The socket is readable or writable; raises OSError, Stranger or BadFrame."""
        if not self._is_connected:
            if not self._wire.begin():
                self._set_writing(self._wire.is_connecting)
                return
            self._is_connected = True
            self._advance(None)
        self._receive()
        self.flush()

    def begin(self) -> None:
        """Begin to connect."""
        self._set_writing(True)

    def _receive(self) -> None:
        num_bytes = 0
        while num_bytes < READ_BYTES or self._wire.num_decrypted:
            into = self._staging[self._end :] if self._target is None else self._target
            came = self._wire.read_into(into)
            if came == 0:
                return
            num_bytes += came
            self.heard_at = time.monotonic()
            if self._target is None:
                self._end += came
                self._parse()
            else:
                self._target = self._target[came:] if came < len(into) else None
            if came < len(into) and not self._wire.num_decrypted:
                return

    def _parse(self) -> None:
        start = 0
        while (taken := self._take(start)) > 0:
            start += taken
        left = self._end - start
        self._staging[:left] = bytes(self._staging[start : self._end])
        self._end = left

    def _take(self, start: int) -> int:
        """Deal with what begins here; how many bytes that were, 0 if it is not complete."""
        if self._handshake is not None:
            return self._take_handshake(start)
        num_bytes = self._end - start
        if num_bytes < FRAME.size:
            return 0
        header: tuple[int, int, int, int] = FRAME.unpack_from(self._staging, start)
        kind, channel, generation, size = header
        if kind == DATA:
            return self._take_data(start, channel, generation, size)
        if size > MAX_CONTROL:
            raise BadFrame(f"a frame of {size} bytes")
        if num_bytes < FRAME.size + size:
            return 0
        body = bytes(self._staging[start + FRAME.size : start + FRAME.size + size])
        self._hearer.on_frame(self, kind, channel, generation, body)
        return FRAME.size + size

    def _take_data(self, start: int, channel: int, generation: int, size: int) -> int:
        begin = start + FRAME.size + PLACE.size
        if begin > self._end:
            return 0
        size -= PLACE.size
        if not 0 < size <= PIECE:
            raise BadFrame(f"a piece of {size} bytes")
        position = PLACE.unpack_from(self._staging, start + FRAME.size)[0]
        target = self._hearer.place(self, channel, generation, position, size)
        if target is None:
            target = NOWHERE[:size]
        here = min(size, self._end - begin)
        target[:here] = self._staging[begin : begin + here]
        if here < size:
            self._target = target[here:]
        return begin + here - start

    def _take_handshake(self, start: int) -> int:
        wanted = self._wanted
        if self._end - start < wanted:
            return 0
        self._advance(bytes(self._staging[start : start + wanted]))
        return wanted

    def _advance(self, came: bytes | None) -> None:
        """Take the handshake a step further."""
        assert self._handshake is not None
        try:
            said, self._wanted = (
                next(self._handshake) if came is None else self._handshake.send(came)
            )
            if said:
                self.say(said)
            if self._wanted == 0:
                next(self._handshake)
        except StopIteration as done:
            self._handshake = None
            self.peer = done.value
            self._hearer.on_open(self, done.value)
