"""Exported rows that are kept beside the prefix cache, so that requests may read it.

What is read from the prefix cache is not computed, so no row of it leaves. Here the scheduler's
process notes which rows the exporter keeps. A request reads the prefix cache as far as all rows
that it exports are kept, and the exporter sends those before the ones that are computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from vllm.config import VllmConfig
from vllm.v1.request import Request

from omnistage.connectors.sender import MAX_BACKLOG_BYTES
from omnistage.stages.vllm.rows.row_index import Flags, Places, RowIndex
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.request_options import ExportedRows
from omnistage.stages.vllm.step.step import Replay
from omnistage.stages.vllm.step.step_schema import Export, torch_dtype
from omnistage.stages.worker.stage import StagePorts

OPTION, DEFAULT_GIB = "row_cache_gib", 1.0

Wanted = Flags | bool  # for each position of a prompt, or for all positions there will be
Longs = npt.NDArray[np.int64]


def asked_gib(ports: StagePorts) -> float:
    """The stage's option `row_cache_gib`; none with a scheduler that the graph file chose.

    Raises ValueError for what is no size.
    """
    gib = ports.options.get(OPTION, DEFAULT_GIB)
    if type(gib) not in (int, float) or not 0 <= gib < math.inf:
        raise ValueError(f"options.{OPTION} of stage {ports.name} is {gib!r}; a number from 0 on")
    return 0.0 if ports.engine.get("scheduler_cls") else float(gib)


def wanted_rows(exported: ExportedRows, prompt_ids: Sequence[int]) -> Wanted:
    """Marks the positions of a prompt whose rows leave."""
    if exported.ids is not None:
        return np.isin(np.array(prompt_ids), exported.ids)
    if exported.first is not None:
        return np.arange(len(prompt_ids)) >= exported.first
    return True


def num_slots(bridge: BridgeConfig, config: VllmConfig, block_size: int) -> int:
    """Blocks of rows for which the bridge has memory; 0: none are kept."""
    export = bridge.schema.export
    if export is None or export.each != "row" or not bridge.sinks or not bridge.row_cache_gib:
        return 0
    if not config.cache_config.enable_prefix_caching:
        return 0
    return int(bridge.row_cache_gib * (1 << 30)) // (row_bytes(export, config) * block_size)


def row_bytes(export: Export, config: VllmConfig) -> int:
    """Returns what a row takes."""
    dtype = torch_dtype(export.dtype, config.model_config.dtype)
    size: int = config.model_config.get_hidden_size() * dtype.itemsize
    return size


def most_replayed(bridge: BridgeConfig, config: VllmConfig) -> int:
    """Rows of a request that may leave at once: an edge's backlog takes twice as many.

    The others are computed, at the pace of the engine's steps.
    """
    export = bridge.schema.export
    return 0 if export is None else MAX_BACKLOG_BYTES // 2 // row_bytes(export, config)


@dataclass(slots=True)
class _Exporting:
    """A request whose rows leave. `held`: by block, slots of blocks that had no hash yet."""

    request: Request
    wanted: Wanted
    num_done: int = 0  # leading positions of which all rows have left
    num_computed: int = 0  # fewer, if it was preempted
    held: dict[int, int] = field(default_factory=dict)

    def wanted_of(self, start: int, end: int) -> Flags:
        """Returns which of these positions."""
        wanted = np.full(end - start, self.wanted is True)
        if not isinstance(self.wanted, bool):
            inside = self.wanted[start:end]
            wanted[: len(inside)] = inside
        return wanted


class RowCache:
    """The row cache of one engine, in its scheduler's process: rows to read, keep and replay."""

    def __init__(self, num_slots: int, block_size: int, most_replayed: int) -> None:
        self._size = block_size
        self._most_replayed = most_replayed
        self._index = RowIndex(num_slots, block_size)
        self._requests: dict[str, _Exporting] = {}

    def __len__(self) -> int:
        """Blocks of which rows are kept."""
        return len(self._index)

    def num_readable(self, request: Request, exported: ExportedRows) -> int:
        """Leading tokens that a request may read from the prefix cache.

        All rows of them that it exports have left already, before it was preempted, or are kept and
        not too many to leave at once.
        """
        one = self._requests.get(request.request_id)
        if one is None:
            wanted = wanted_rows(exported, request.prompt_token_ids or ())
            one = self._requests[request.request_id] = _Exporting(request, wanted)
        hashes = request.block_hashes
        needed = one.wanted_of(0, len(hashes) * self._size)
        needed[: one.num_done] = False
        by_block = needed.reshape(-1, self._size)
        num_rows = by_block.sum(axis=1).cumsum()
        num_sent = int(np.searchsorted(num_rows, self._most_replayed, side="right"))
        num_blocks = min(self._index.num_covered(hashes, by_block), num_sent)
        self._index.use(hashes[:num_blocks])
        return num_blocks * self._size

    def step(
        self, request_id: str, row: int, positions: Longs, is_exported: Flags
    ) -> tuple[Replay | None, Places]:
        """A step computes these positions of a request: what is replayed before, what is kept."""
        one = self._requests.get(request_id)
        if one is None:
            assert positions[0] == 0, "a request read the prefix cache unasked"
            return None, np.full(len(positions), -1, np.int64)
        first, end = int(positions[0]), int(positions[-1]) + 1
        if first < one.num_computed:
            self._free_held(one)  # preempted: what was sampled last may be sampled anew
        replay = self._replay(one, row, first) if first > one.num_done else None
        one.num_computed, one.num_done = end, max(one.num_done, end)
        return replay, self._keep(one, positions, is_exported)

    def _replay(self, one: _Exporting, row: int, end: int) -> Replay | None:
        """The rows from where it was to here, which were read from the prefix cache."""
        positions = one.num_done + np.flatnonzero(one.wanted_of(one.num_done, end))
        if len(positions) == 0:
            return None
        hashes = one.request.block_hashes
        blocks, starts = np.unique(positions // self._size, return_index=True)
        parts = np.split(positions % self._size, starts[1:])
        places = [
            self._index.places(hashes[block], offsets)
            for block, offsets in zip(blocks.tolist(), parts, strict=True)
        ]
        return Replay(row, positions.astype(np.int32), np.concatenate(places))

    def _keep(self, one: _Exporting, positions: Longs, is_exported: Flags) -> Places:
        places = np.full(len(positions), -1, np.int64)
        if len(positions) == 1:  # as in each step that answers
            block, offset = divmod(int(positions[0]), self._size)
            slot = self._slot(one, block) if is_exported[0] else None
            if slot is not None:
                places[0] = self._index.keep_one(slot, offset)
            return places
        exported = np.flatnonzero(is_exported)
        if len(exported) == 0:
            return places
        blocks, starts = np.unique(positions[exported] // self._size, return_index=True)
        parts = np.split(exported, starts[1:])
        for block, part in zip(blocks.tolist(), parts, strict=True):
            slot = self._slot(one, block)
            if slot is not None:
                places[part] = self._index.keep(slot, positions[part] % self._size)
        return places

    def _slot(self, one: _Exporting, block: int) -> int | None:
        """Returns the slot of a block whose tokens are not all known, which gets its name later."""
        hashes = one.request.block_hashes
        if block not in one.held or block < len(hashes):
            self._name_held(one)
        if block < len(hashes):
            return self._index.open(hashes[block])
        if block not in one.held:
            slot = self._index.open(None)
            if slot is None:
                return None
            one.held[block] = slot
        return one.held[block]

    def _name_held(self, one: _Exporting) -> None:
        """Say of which blocks they are, as far as their tokens are known."""
        hashes = one.request.block_hashes
        for block in [block for block in one.held if block < len(hashes)]:
            self._index.name(one.held.pop(block), hashes[block])

    def begin_step(self) -> None:
        """The next requests are of a new step."""
        self._index.begin_step()

    def finish(self, request: Request) -> None:
        """A request has ended: all of its tokens are known."""
        one = self._requests.pop(request.request_id, None)
        if one is None:
            return
        self._name_held(one)
        self._free_held(one)
        self._index.use(request.block_hashes[: one.num_done // self._size])

    def _free_held(self, one: _Exporting) -> None:
        for slot in one.held.values():
            self._index.free(slot)
        one.held.clear()

    def clear(self) -> None:
        """Forget all rows: the prefix cache is emptied."""
        self._index.clear()
        for one in self._requests.values():
            self._free_held(one)
