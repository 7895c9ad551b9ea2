"""The rows that leave the engine: which lines of a step, what was kept of them, and drafts."""

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from omnistage.stages.vllm.bridge.drafts import Drafts, draft_lines
from omnistage.stages.vllm.bridge.rows import Longs, StepTokens
from omnistage.stages.vllm.rows.row_cache import RowCache, Wanted
from omnistage.stages.vllm.rows.row_index import Flags
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions
from omnistage.stages.vllm.step.step import StepMeta


class Exports:
    """Knows which rows of each request leave, in the scheduler's process."""

    def __init__(
        self, block_size: int, row_cache: RowCache | None = None, drafts: Drafts | None = None
    ) -> None:
        self._block_size = block_size
        self.row_cache = row_cache
        self._drafts = drafts  # of an engine that speculates
        self._rows: dict[int, tuple[str, Wanted]] = {}  # by row, whose leave and which

    def __len__(self) -> int:
        """Requests some rows of which may still leave."""
        return len(self._rows)

    # What the prefix cache is read for

    def num_readable(self, request: Request) -> int | None:
        """Leading tokens that a request may read from the prefix cache; None: all of them."""
        exported = exported_rows(request)
        if exported is None:
            return None
        return 0 if self.row_cache is None else self.row_cache.num_readable(request, exported)

    def clear_row_cache(self) -> None:
        """Forget the rows that are kept."""
        if self.row_cache is not None:
            self.row_cache.clear()

    def begin_step(self, hash_block_size: int) -> None:
        """Before the prefix cache is asked for a step; rows are kept by its own blocks only."""
        if hash_block_size != self._block_size:
            self.row_cache = None
        if self.row_cache is not None:
            self.row_cache.begin_step()

    # Requests

    def admit(self, request: Request) -> None:
        """The engine runs a request, for the first time or again."""
        if self._drafts is not None and exported_rows(request) is not None:
            self._drafts.watch(request)

    def finish(self, request: Request) -> None:
        """Drop what is known of a request that ended, but for the rows that are kept of it."""
        if self._drafts is not None:
            self._drafts.forget(request.request_id)
        if self.row_cache is not None:
            self.row_cache.finish(request)

    def begin(self, row: int, request_id: str, wanted: Wanted) -> None:
        """A request that has this row exports."""
        self._rows[row] = request_id, wanted

    def end(self, row: int) -> None:
        """The request of a row has ended, or waits again."""
        self._rows.pop(row, None)

    # Steps

    def settle(self) -> Longs | None:
        """Return which of the drafts that wait were accepted; None if none waited."""
        return None if self._drafts is None else self._drafts.settle()

    def add_to(self, meta: StepMeta, tokens: StepTokens, output: SchedulerOutput) -> None:
        """Say which of a step's lines leave, which rows were kept, and which wait."""
        is_exported = np.zeros(len(tokens.rows), bool)
        places = np.full(len(tokens.rows), -1, np.int64)
        parts = parts_of(tokens.rows)
        for row, (request_id, wanted) in list(self._rows.items()):
            mine = parts.get(row)
            if mine is None:
                continue
            positions = tokens.positions[mine]
            if isinstance(wanted, bool):
                is_exported[mine] = wanted
            else:
                inside = np.minimum(positions, len(wanted) - 1)
                is_exported[mine] = wanted[inside] & (positions < len(wanted))
                if positions[-1] >= len(wanted) - 1:
                    del self._rows[row]  # its prompt has been read
            if self.row_cache is not None:
                replay, places[mine] = self.row_cache.step(
                    request_id, row, positions, is_exported[mine]
                )
                meta.replays += [] if replay is None else [replay]
        if is_exported.any():
            meta.export = np.flatnonzero(is_exported)
            if self._drafts is not None and output.scheduled_spec_decode_tokens:
                self._hold_drafts(self._drafts, meta, tokens, draft_lines(output)[meta.export])
            meta.export_positions = tokens.positions[meta.export].astype(np.int32)
            meta.export_places = places[meta.export]

    def _hold_drafts(
        self, drafts: Drafts, meta: StepMeta, tokens: StepTokens, is_draft: Flags
    ) -> None:
        """Rows of drafts come last, and wait."""
        assert meta.export is not None
        held = meta.export[is_draft]
        if len(held) == 0:
            return
        meta.export = np.concatenate([meta.export[~is_draft], held])
        meta.num_held = len(held)
        parts = parts_of(tokens.rows[held])
        request_ids = [self._rows[row][0] for row in parts]
        counts = [part.stop - part.start for part in parts.values()]
        drafts.hold(request_ids, counts, tokens.positions[held])


def exported_rows(request: Request) -> ExportedRows | None:
    """The rows of a request that leave."""
    options = RequestOptions.of(request.sampling_params)
    return None if options is None else options.exported


def parts_of(rows: Longs) -> dict[int, slice]:
    """Where each request's tokens are in a step, in which they are neighbours."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1)).tolist()
    ends = [*starts[1:], len(rows)]
    return {int(rows[start]): slice(start, end) for start, end in zip(starts, ends, strict=True)}
