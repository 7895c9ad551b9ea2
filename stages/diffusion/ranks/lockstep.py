"""Orders of rank 0, which all ranks execute in lockstep: it goes on when all have replied."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist

from omnistage.stages.diffusion.merging.stopping import stoppable
from omnistage.stages.diffusion.merging.targets import without_frames
from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.ranks.orders import Call, RankOrder, Reply
from omnistage.stages.diffusion.ranks.peers import Peers, RankError
from omnistage.stages.diffusion.ranks.tiles import Tile, dtype_of
from omnistage.stages.diffusion.ranks.wire import (
    Header,
    as_bytes,
    from_bytes,
    pack,
    room_for,
    unpack,
)
from omnistage.stages.diffusion.ranks.worker import RankSpec, RankWorker

logger = logging.getLogger(__name__)


class Lockstep:
    """Has all ranks execute an order at once; one order at a time."""

    _worker: RankWorker
    _device: torch.device

    def __init__(self, spec: RankSpec, on_failure: Callable[[str], None]) -> None:
        """`on_failure` is called when a rank has died or ranks disagree, from any thread."""
        self._spec = spec
        self._on_failure = on_failure
        self.peers = Peers(spec, on_failure)
        self._lock = threading.RLock()
        self._number = 0
        self._runs: set[int] = set()  # orders to call a denoiser that not all have replied to
        self.num_calls = 0

    def run(self, name: str, calls: Sequence[Call]) -> list[object]:
        """A denoiser's forwards, at most one for each group; the results in the same order.

        An error of ours is raised as it is, one of another rank as RankError. Nobody stops in the
        middle: the others would wait for ever.
        """
        with self._lock, stoppable(()):
            self.num_calls += 1
            arguments = name, TorchModes.now(), list(calls)
            order = self._send("run", arguments, True)
            last = min(map(self.peers.heard, self.peers), default=0)
            self._runs = {order.number, *(one for one in self._runs if one > last)}
            try:
                own = self._worker.run(*arguments)
            except Exception as error:  # noqa: BLE001 - raised below, once all are out of it
                failure = without_frames(error)
            else:
                firsts = [group * self._spec.place.group_size for group in range(1, len(calls))]
                replies = [self._reply_of(rank, order.number) for rank in firsts]
                return self._unless_failed(firsts, [own, *replies])
            self._settle(order.number)
            raise failure

    def decode_tiles(self, name: str, tiles: Sequence[Tile]) -> list[object]:
        """Tiles of one decoding, at most one for each rank that shares them; results in order.

        Errors are as those of `run`. Here no rank waits for another one.
        """
        with self._lock, stoppable(()):
            dtype = dtype_of(getattr(self._worker.pipeline, name).decoder)
            arguments = name, TorchModes.now(), dtype, list(tiles)
            order = self._send("decode_tile", arguments, True)
            others = range(1, len(tiles))
            own: list[object] | Exception | None
            try:
                own = self._worker.decode_tile(*arguments)
            except Exception as error:  # noqa: BLE001 - raised below, once all have answered
                own = without_frames(error)
            replies = [self._reply_of(rank, order.number) for rank in others]
            if isinstance(own, Exception):
                raise own
            return self._unless_failed(others, [own, *replies])

    def _unless_failed(self, ranks: Sequence[int], results: list[object]) -> list[object]:
        for rank, result in zip(ranks, results[1:], strict=True):
            if isinstance(result, Reply):
                self._settle(result.number)
                message = f"rank {rank}: {result.error}"
                raise (
                    torch.OutOfMemoryError(message)
                    if result.is_out_of_memory
                    else RankError(message)
                )
        return results

    def _settle(self, number: int) -> None:
        """After a call that failed: all ranks are out of it, or the stage ends."""
        self._runs.discard(number)
        for rank in self.peers:
            if self.peers.heard(rank) >= number:
                continue
            is_with_us = rank < self._spec.place.group_size
            reply = self._received(rank, number, self._spec.alone_s / 2 if is_with_us else None)
            if reply is None:
                self._fail(f"a call failed, but not on rank {rank}, which now waits for ever")
            elif reply.result is not None:  # its tensors are on their way
                self._with_tensors(rank, reply.result)
        self.others("go_on")

    def rpc(self, method: str, *args: object, reply: bool = True, from_all: bool = False) -> object:
        """A method on all ranks at once, between two steps: rank 0's result, or a list of all.

        Without a reply nobody waits for the others. An error of any rank is everyone's: RankError.
        """
        with self._lock:
            order = self._send(method, args, reply and from_all)
            failed = []
            own: object = None
            try:
                own = getattr(self._worker, method)(*args)
            except Exception as error:
                logger.exception("rank 0: %s failed", method)
                failed.append(f"rank 0: {type(error).__name__}: {error}")
            if not reply and not failed:
                return None
            found = [self._reply_of(rank, order.number) for rank in self.peers]
            for rank, one in zip(self.peers, found, strict=True):
                if isinstance(one, Reply):
                    failed.append(f"rank {rank}: {one.error}")
            if failed:
                raise RankError("; ".join(failed))
            return [own, *found] if from_all else own

    def others(self, method: str, *args: object) -> None:
        """A method on all ranks but ours, when ours is done; RankError."""
        with self._lock:
            order = self._send(method, args, False)
            for rank in self.peers:
                answer = self._reply_of(rank, order.number)
                if isinstance(answer, Reply):
                    raise RankError(f"rank {rank}: {answer.error}")

    def follow(self, method: str, *args: object) -> None:
        """Repeats the order that rank 0 has executed: a rank that cannot is no copy any more."""
        try:
            self.others(method, *args)
        except RankError as error:
            self._fail(str(error))
            raise

    def _fail(self, problem: str) -> NoReturn:
        self._on_failure(problem)
        raise RankError(problem)

    def _send(self, method: str, args: Sequence[object], wants_result: bool) -> RankOrder:
        """Send an order to all; nothing has left if its arguments cannot be sent."""
        header, tensors = pack(args, "arguments")
        has_tensors = header.places and self.peers
        flat = as_bytes(header, tensors, self._device) if has_tensors else None
        self._number += 1
        order = RankOrder(self._number, method, header, wants_result)
        for rank in self.peers:
            self._drain(rank)
        self.peers.tell(order)
        if flat is not None:
            dist.broadcast(flat, 0)
        return order

    def _reply_of(self, rank: int, number: int) -> object:
        """The result of one rank; of one that failed its reply."""
        reply = self._received(rank, number, None)
        if reply is None or reply.result is None:
            return reply
        return self._with_tensors(rank, reply.result)

    def _with_tensors(self, rank: int, header: Header) -> object:
        try:
            flat = room_for(header, self._device)
        except RuntimeError as error:  # the rank sends them, and they cannot be taken
            self._fail(f"there is no room for a result of rank {rank}: {error}")
        if header.places:
            dist.recv(flat, rank)
        return unpack(header, from_bytes(header, flat))

    def _received(self, rank: int, number: int, timeout_s: float | None) -> Reply | None:
        """The reply of one rank to an order; None: it has said nothing for so long."""
        while True:
            reply = self.peers.next_reply(rank, timeout_s)
            if reply is None or reply.number >= number:
                return reply
            self._check_unheard(rank, reply)

    def _drain(self, rank: int) -> None:
        """Replies that nobody waited for: they must not fill the pipe."""
        while (reply := self.peers.next_reply(rank, 0)) is not None:
            self._check_unheard(rank, reply)

    def _check_unheard(self, rank: int, reply: Reply) -> None:
        """End the stage if a call failed there and not here: devices wait for that rank."""
        if reply.error and reply.number in self._runs:
            self._runs.discard(reply.number)
            self._fail(f"rank {rank}: a call failed there alone: {reply.error}")
