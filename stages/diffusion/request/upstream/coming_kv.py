"""Keys and values of a request that come from a stage upstream, and the memory of all requests'."""

import math
from collections import deque
from collections.abc import Callable, Mapping

import torch

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stages.device.dtypes import dtype_of
from omnistage.stages.messages.arguments import KvToCome
from omnistage.stages.messages.edge import Edge, KeysAndValues
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import StagePorts

OPTION, DEFAULT_GIB = "kv_gib", 4.0
GIB = 1 << 30


def kv_bytes_of(ports: StagePorts) -> int:
    """The stage's option `kv_gib`, in bytes; raises ValueError for what is no size."""
    gib = ports.options.get(OPTION, DEFAULT_GIB)
    if type(gib) not in (int, float) or not 0 < gib < math.inf:
        raise ValueError(f"options.{OPTION} of stage {ports.name} is {gib!r}; a number above 0")
    return int(gib * GIB)


class KvRoom:
    """The memory for keys and values of all requests, which is given out in order.

    `changed` is called when `num_taken`, in bytes, may have changed.
    """

    def __init__(self, num_bytes: int, changed: Callable[[], None]) -> None:
        self.num_bytes = num_bytes
        self.num_taken = 0
        self._changed = changed
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def ask(self, num_bytes: int, begin: Callable[[], None]) -> None:
        """Call `begin` once there is room for so many bytes, which are taken then."""
        self._waiting.append((num_bytes, begin))
        self._give()

    def give_back(self, num_bytes: int) -> None:
        """Let others have it."""
        self.num_taken -= num_bytes
        self._give()

    def forget(self, begin: Callable[[], None]) -> None:
        """Give nothing to who waits any more."""
        self._waiting = deque(one for one in self._waiting if one[1] != begin)
        self._give()

    @property
    def is_awaited(self) -> bool:
        """Returns whether a request waits for room."""
        return bool(self._waiting)

    def _give(self) -> None:
        while self._waiting and self.num_taken + self._waiting[0][0] <= self.num_bytes:
            num_bytes, begin = self._waiting.popleft()
            self.num_taken += num_bytes
            begin()
        self._changed()


class ComingKv:
    """Keys and values of one request, by argument: tensors of its texts, as they fill.

    Until there is room for all of them, what has come keeps its credit, so that no more comes.
    """

    def __init__(
        self,
        to_come: Mapping[str, KvToCome],
        room: KvRoom,
        device: torch.device,
        begun: Callable[[], None],
    ) -> None:
        """`begun` is called when room was found."""
        self._lengths = {name: one.lengths for name, one in to_come.items()}
        self._room = room
        self._device = device
        self._begun = begun
        self._num_tokens = sum(map(sum, self._lengths.values()))
        self._missing = {
            name: [torch.ones(length, dtype=torch.bool) for length in lengths]
            for name, lengths in self._lengths.items()
        }
        self._early: list[tuple[KeysAndValues, Receiver[Edge], Chunk[Edge]]] = []
        self._num_bytes: int | None = None  # asked for
        self.tensors: dict[str, list[torch.Tensor]] = {}
        self.error: RequestError | None = None  # why there is never room

    @property
    def is_complete(self) -> bool:
        """Returns whether all that was announced is there."""
        return not any(one.any() for ones in self._missing.values() for one in ones)

    @property
    def is_waiting(self) -> bool:
        """Returns whether it waits for room: for others, and not for upstream."""
        return self._num_bytes is not None and not self.tensors

    def add(self, message: KeysAndValues, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """Take a part, and give its credit back once it is where it belongs."""
        if self.tensors:
            self._put(message, receiver, chunk)
            return
        self._early.append((message, receiver, chunk.owned()))
        if self._num_bytes is None:
            part = chunk.tensors["kv"]
            self._num_bytes = self._num_tokens * (part.num_bytes // part.shape[2])
            if self._num_bytes > self._room.num_bytes:
                self.error = self._too_large(self._num_bytes)
            else:
                self._room.ask(self._num_bytes, self._begin)

    def _too_large(self, num_bytes: int) -> RequestError:
        needed, there = (f"{count / GIB:.3g} GiB" for count in (num_bytes, self._room.num_bytes))
        return RequestError(
            400,
            f"has {self._num_tokens} tokens with its context, whose keys and values take "
            f"{needed}; the option {OPTION} allows {there}",
            param="prompt",
            code="context_length_exceeded",
        )

    def _begin(self) -> None:
        part = self._early[0][2].tensors["kv"]
        layers, two, _, *head = part.shape
        self.tensors = {
            name: [
                torch.empty(
                    (layers, two, length, *head), dtype=dtype_of(part.dtype), device=self._device
                )
                for length in lengths
            ]
            for name, lengths in self._lengths.items()
        }
        early, self._early = self._early, []
        for one in early:
            self._put(*one)
        self._begun()

    def _put(self, message: KeysAndValues, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        part = chunk.tensors["kv"]
        given = torch.frombuffer(part.data, dtype=dtype_of(part.dtype)).view(part.shape)
        place = slice(chunk.index, chunk.index + part.shape[2])
        self.tensors[message.argument][message.number][:, :, place] = given
        self._missing[message.argument][message.number][place] = False
        receiver.grant(chunk.request_id)

    def release(self) -> None:
        """Give the memory back, or ask for it no longer."""
        if self.tensors:
            self._room.give_back(self._num_bytes or 0)
        elif self._num_bytes is not None:
            self._room.forget(self._begin)
        self.tensors, self._early = {}, []
