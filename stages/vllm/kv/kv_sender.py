"""Sends keys and values off the engine's thread, out of the engine's blocks into channels.

Nothing waits in memory of its own: a chunk is read from the cache where it is sent from, once its
request has credit and the channel room. Until all of a request has left, its blocks are the buffer.
"""

import logging
import os
import select
import threading
from collections.abc import Mapping
from contextlib import suppress

import torch

from omnistage.connectors.chunk import Chunk, Filling, Tensor
from omnistage.connectors.contract import ChunkTooLarge, Sender
from omnistage.stages.vllm.kv.cached_kv import DTYPES, CachedKv
from omnistage.stages.vllm.kv.kv_meta import DueKv
from omnistage.stages.worker.ledger import Held, Ledger

logger = logging.getLogger(__name__)

CHUNK_BYTES = 2 << 20


class _Sending:
    """One request on its way to one stage."""

    def __init__(self, due: DueKv, sender: Sender, event: torch.cuda.Event | None) -> None:
        assert due.options.kv is not None
        self.request_id, self.id = due.request_id, due.options.id
        self.message = due.options.kv
        self.blocks = torch.tensor(due.blocks)
        self.num_tokens = due.num_tokens
        self.num_sent = 0
        self.is_dropped = False
        self.sender = sender
        self.event = event  # of the step that computed the last of it


class KvSender:
    """A thread that sends one chunk of each request in turn.

    `senders`: by the stage that each goes to.
    """

    def __init__(
        self, senders: Mapping[str, Sender], cached: CachedKv, ledger: Ledger | None = None
    ) -> None:
        self._senders = senders
        self._cached = cached
        self._ledger = ledger
        self._most = max(1, CHUNK_BYTES // cached.token_bytes)  # tokens of a chunk
        self._waiting: list[_Sending] = []
        self._changing = threading.Condition()
        self._read_now: _Sending | None = None  # its blocks may be read: who drops it waits
        self._num_left = 0  # requests of which nothing remains to be sent
        self._is_closed = False
        self._wake_up = os.eventfd(0, os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="omnistage-kv", daemon=True)
        self._count()
        self._thread.start()

    def start(self, due: DueKv) -> None:
        """Begin to send what a step has computed to its end; must follow the step's kernels."""
        event = None
        if self._cached.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        to = due.options.to
        with self._changing:
            self._waiting += [
                _Sending(due, sender, event)
                for target, sender in self._senders.items()
                if to is None or target in to
            ]
            self._count()
        os.eventfd_write(self._wake_up, 1)

    def drop(self, request_id: str) -> None:
        """Send nothing more of a request; its blocks are not read any more."""
        with self._changing:
            dropped = [one for one in self._waiting if one.request_id == request_id]
            for one in dropped:
                one.is_dropped = True
            self._changing.wait_for(lambda: self._read_now not in dropped)
            for one in dropped:
                if one in self._waiting:
                    self._give_up(one)
            self._count()

    @property
    def sending(self) -> set[str]:
        """The requests of which some has not left."""
        with self._changing:
            return {one.request_id for one in self._waiting}

    def wait(self, timeout_s: float) -> None:
        """Wait until a request has left; a chunk wakes nobody, who would only delay the next."""
        with self._changing:
            before = self._num_left
            self._changing.wait_for(lambda: self._num_left > before or not self._waiting, timeout_s)

    def close(self) -> None:
        """Stop; what has not left is lost."""
        if self._is_closed:
            return
        self._is_closed = True
        os.eventfd_write(self._wake_up, 1)
        self._thread.join(timeout=5)
        os.close(self._wake_up)
        for sender in self._senders.values():
            sender.close()

    def _run(self) -> None:
        if self._cached.device.type == "cuda":
            torch.cuda.set_device(self._cached.device)
            torch.cuda.set_stream(torch.cuda.Stream(self._cached.device))
        poller = select.poll()
        for file in (self._wake_up, *(sender.fileno() for sender in self._senders.values())):
            poller.register(file, select.POLLIN)
        while not self._is_closed:
            for sender in self._senders.values():
                sender.flush()
            with self._changing:
                self._count()
            while self._send_in_turn():
                continue
            poller.poll()
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_up)

    def _send_in_turn(self) -> bool:
        """Send a chunk of each that may send one; whether any did."""
        with self._changing:
            waiting = list(self._waiting)
        is_any_sent = False
        for one in waiting:
            with self._changing:
                if one.is_dropped:
                    continue
                self._read_now = one
            is_lost = False
            try:
                is_any_sent |= self._try_send(one)
            except Exception:
                logger.exception("keys and values of %s could not be sent", one.id)
                is_lost = True
            with self._changing:
                self._read_now = None
                if is_lost:
                    self._give_up(one)
                elif one.num_sent == one.num_tokens:
                    self._leave(one)
                self._count()
                if one.is_dropped or one not in self._waiting:
                    self._changing.notify_all()
        return is_any_sent

    def _try_send(self, one: _Sending) -> bool:
        """Offer a request's next chunk; whether there may be more to offer."""
        count = min(self._most, one.num_tokens - one.num_sent)
        is_last = one.num_sent + count == one.num_tokens
        try:
            is_sent = one.sender.offer(self._chunk(one, count, is_last))
        except ChunkTooLarge:
            if count == 1:
                raise
            self._most = count // 2
            return True
        one.num_sent += count if is_sent else 0
        return is_sent

    def _give_up(self, one: _Sending) -> None:
        self._leave(one)
        one.sender.forget(one.id)

    def _leave(self, one: _Sending) -> None:
        self._waiting.remove(one)
        self._num_left += 1

    def _chunk(self, one: _Sending, count: int, is_last: bool) -> Chunk:
        layers, two, heads, size = self._cached.token_shape
        shape = layers, two, count, heads, size

        def fill(place: memoryview) -> None:
            if one.event is not None:
                torch.cuda.current_stream().wait_event(one.event)
            out = torch.frombuffer(place, dtype=self._cached.dtype).view(shape)
            self._cached.read(one.blocks, one.num_sent, out)

        filling = Filling(count * self._cached.token_bytes, fill)
        tensors = {"kv": Tensor(DTYPES[self._cached.dtype], shape, filling)}
        return Chunk(one.id, one.message, one.num_sent, tensors, is_last)

    def _count(self) -> None:
        if self._ledger is None:
            return
        num_tokens = sum(one.num_tokens - one.num_sent for one in self._waiting)
        self._ledger.write(Held.STREAMS, len(self._waiting))
        self._ledger.write(Held.KV_BYTES, num_tokens * self._cached.token_bytes)
        senders = self._senders.values()
        self._ledger.write(Held.CREDITS, sum(sender.num_requests for sender in senders))
