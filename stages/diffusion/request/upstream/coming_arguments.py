"""Arguments of a pipeline's call that a stage upstream makes."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.kinds import GivenArguments
from omnistage.stages.device.dtypes import dtype_of
from omnistage.stages.diffusion.pipeline import PipelineCall
from omnistage.stages.diffusion.request.tasks import arguments_of
from omnistage.stages.diffusion.request.upstream.coming_kv import ComingKv, KvRoom, kv_bytes_of
from omnistage.stages.messages.arguments import ArgumentsToCome, RowsToCome
from omnistage.stages.messages.edge import Edge, Ids, KeysAndValues, Rows
from omnistage.stages.worker.ledger import Held, Ledger
from omnistage.stages.worker.requests.watch import Watch, overdue
from omnistage.stages.worker.stage import StagePorts


class ComingArguments:
    """Puts rows and ids of one request where they belong, however they come.

    `kv`: its keys and values, if any come.
    """

    def __init__(self, to_come: ArgumentsToCome, kv: ComingKv | None = None) -> None:
        self._to_come = to_come
        self._kv = kv
        self._rows: dict[str, torch.Tensor] = {}
        self._masks = {name: mask_of(one.lengths) for name, one in to_come.rows.items()}
        self._missing = {name: mask.bool() for name, mask in self._masks.items()}
        self._ids: dict[str, torch.Tensor] = {}

    @property
    def is_complete(self) -> bool:
        """Returns whether all that was announced is there."""
        has_ids = self._ids.keys() == self._to_come.ids.keys()
        has_rows = not any(missing.any() for missing in self._missing.values())
        return has_ids and has_rows and (self._kv is None or self._kv.is_complete)

    def add(self, chunk: Chunk[Edge]) -> None:
        """Take rows of one text, or ids; a chunk that only ends a text has none."""
        message = chunk.message
        if isinstance(message, Rows) and "hidden" in chunk.tensors:
            self._add_rows(message, chunk)
        elif isinstance(message, Ids):
            ids = torch.from_numpy(chunk.tensors["ids"].numpy().copy())
            self._ids[message.argument] = ids.view(self._to_come.ids[message.argument])

    def _add_rows(self, message: Rows, chunk: Chunk[Edge]) -> None:
        name, row = message.text, message.row
        sent = chunk.tensors["hidden"]
        hidden = torch.frombuffer(sent.data, dtype=dtype_of(sent.dtype)).view(sent.shape)
        positions = torch.from_numpy(chunk.tensors["positions"].numpy()).long()
        hidden, places = wanted(hidden, positions, self._to_come.rows[name], row)
        if name not in self._rows:
            self._rows[name] = hidden.new_zeros(*self._masks[name].shape, hidden.shape[1])
        self._rows[name][row, places] = hidden
        self._missing[name][row, places] = False

    def arguments(self, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """Rows [texts, longest, size], padded with zeros, and their masks; ids; values."""
        masks = {
            one.mask: self._masks[name] for name, one in self._to_come.rows.items() if one.mask
        }
        whole = {name: one.to(device) for name, one in (masks | self._ids).items()}
        return {
            **{name: rows.to(device, dtype) for name, rows in self._rows.items()},
            **whole,
            **({} if self._kv is None else self._kv.tensors),
            **{name: list(whole[name]) for name in self._to_come.listed},
            **self._to_come.values,
        }


class Upstream:
    """The requests whose arguments come from the stage upstream; `given`: what its kind says."""

    def __init__(self, ports: StagePorts) -> None:
        given = KINDS[ports.source_kind].gives
        assert given is not None  # of a kind that makes arguments
        self.given: GivenArguments = given
        self._ports = ports
        self._ledger = Ledger(Path(ports.ledger)) if ports.ledger else None
        self._waiting: dict[str, tuple[ComingArguments, asyncio.Event]] = {}
        self._kv: dict[str, ComingKv] = {}
        self._room = KvRoom(kv_bytes_of(ports), self._count)
        deadlines = ports.deadlines
        self._quiet_s = min(deadlines.first_chunk_s, deadlines.next_chunk_s) / 8

    async def all_of(
        self, request_id: str, to_come: ArgumentsToCome, device: torch.device
    ) -> ComingArguments:
        """All that was announced; RequestError when it does not come in time.

        Keys and values are on the device; they hold memory until `release`. Nothing is late of what
        waits for memory that others hold: the gateway is told, since it sees no step meanwhile.
        """
        has_come = asyncio.Event()
        kv = self._kv[request_id] = ComingKv(to_come.kv, self._room, device, has_come.set)
        coming = ComingArguments(to_come, kv)
        watch = self._ports.watch()
        self._waiting[request_id] = coming, has_come
        self._count()
        try:
            while not coming.is_complete:
                has_come.clear()
                await self._sees(request_id, has_come, watch)
                if kv.error is not None:
                    raise kv.error
                watch.restart()
        finally:
            del self._waiting[request_id]
            self._count()
        return coming

    async def _sees(self, request_id: str, has_come: asyncio.Event, watch: Watch) -> None:
        """Wait for the next part; RequestError when it is overdue."""
        while not has_come.is_set():
            if self._is_held_up(request_id):
                self._ports.send_queued(request_id)
                watch.restart()
            elif watch.is_overdue:
                raise overdue(self._ports.source, self._ports.name)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_s):
                    await watch.sees(has_come)

    def _is_held_up(self, request_id: str) -> bool:
        """Returns whether others are the reason that no part of a request comes.

        It waits for room itself; or others do, and fill the engine upstream, whose blocks hold
        what has not left. These get on as long as one that has all of its own will give room back.
        """
        if self._kv[request_id].is_waiting:
            return True
        holds_room = (one for one, kv in self._kv.items() if kv.tensors)
        return self._room.is_awaited and any(one not in self._waiting for one in holds_room)

    def release(self, request_id: str) -> None:
        """A request is over: the memory of its keys and values is for others."""
        kv = self._kv.pop(request_id, None)
        if kv is not None:
            kv.release()

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """A part of an argument; its request's task may not have begun yet."""
        if chunk.request_id in self._waiting:
            self._add(receiver, chunk)
        else:
            asyncio.get_running_loop().call_soon(self._add, receiver, chunk.owned())

    def _add(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        waiting = self._waiting.get(chunk.request_id)
        if waiting is None:
            receiver.grant(chunk.request_id)
            return
        coming, has_come = waiting
        if isinstance(chunk.message, KeysAndValues):
            self._kv[chunk.request_id].add(chunk.message, receiver, chunk)
        else:
            receiver.grant(chunk.request_id)
            coming.add(chunk)
        has_come.set()

    def _count(self) -> None:
        if self._ledger is not None:
            self._ledger.write(Held.LATE_INPUTS, len(self._waiting))
            self._ledger.write(Held.KV_BYTES, self._room.num_taken)

    def close(self) -> None:
        """Let the ledger go."""
        if self._ledger is not None:
            self._ledger.close()


def wanted(
    hidden: torch.Tensor, positions: torch.Tensor, to_come: RowsToCome, row: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a text that are a part of its argument, and their places in it."""
    places = positions - to_come.first
    if not to_come.left_out:
        return hidden, places
    is_wanted = torch.ones(len(positions), dtype=torch.bool)
    for start, stop in to_come.left_out[row]:
        is_wanted &= (positions < start) | (positions >= stop)
        places = places - (positions - start).clamp(0, stop - start)
    return hidden[is_wanted], places[is_wanted]


def mask_of(lengths: list[int]) -> torch.Tensor:
    """int64 [texts, longest]: 1 where a text has a row."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def blank_arguments(
    given: GivenArguments, pipeline: PipelineCall, model: str, call: Mapping[str, object]
) -> dict[str, Any]:
    """Arguments of no meaning for a warm-up `call`, as the kind of the stage upstream makes them.

    Raises ValueError for one that the pipeline does not take.
    """
    module, _, name = given.blank.partition(":")
    made: dict[str, Any] = getattr(import_module(module), name)(model, call)
    unknown = sorted(made.keys() - arguments_of(pipeline).keys())
    if unknown:
        taker = type(pipeline).__name__
        raise ValueError(f"the stage upstream gives {unknown[0]}, which {taker} does not take")
    return made


def placed(
    arguments: Mapping[str, object], device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Arguments whose arrays are tensors on a device, those of floats in the pipeline's dtype."""
    return {name: _placed(value, device, dtype) for name, value in arguments.items()}


def _placed(value: object, device: torch.device, dtype: torch.dtype) -> object:
    if isinstance(value, list):
        return [_placed(one, device, dtype) for one in value]
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value).to(device)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
