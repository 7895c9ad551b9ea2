"""The rows of one request that come while it runs: where each goes, and how far they have come."""

import numpy as np
import numpy.typing as npt

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.edge import Edge, RowsReleased
from omnistage.stages.vllm.rows.row_store import RowStore
from omnistage.stages.vllm.step.request_options import LatePrompt
from omnistage.stages.vllm.step.step import Ints

ALL = 1 << 60
# What a position's place says where it is no place of the store.
NO_ROW, AWAITED, COMPUTED = 0, -1, -2

Longs = npt.NDArray[np.int64]


class LateRows:
    """Row `sources[k]` of upstream goes to position `positions[k]`, both ascending.

    Where there is `following`, all rows from its source on go to the positions from its position
    on, as many as upstream releases in the end. They may come in any order, twice, and before they
    are released; a position's row is computed once. `places` says by position where its row is.
    """

    def __init__(self, prompt: LatePrompt, store: RowStore, max_model_len: int) -> None:
        self._store = store
        self._positions = np.frombuffer(prompt.hidden_positions, np.int32)
        self._sources = np.frombuffer(prompt.hidden_sources, np.int32)
        self._source, self._first = prompt.following or (ALL, max_model_len)
        self._last = max_model_len  # no position: where rows go that nobody asked for
        self.places: Ints = np.full(max_model_len + 1, NO_ROW, np.int32)
        self.places[self._positions] = self.places[self._first : self._last] = AWAITED
        self._num_known = 0  # leading rows of `positions` that have come
        # The first position that follows and waits for its row, one behind the last that does not,
        # and behind the last whose row was released.
        self._next = self._most = self._released = min(self._first, self._last)
        self._has_end = prompt.following is None

    @property
    def end(self) -> int:
        """The position behind the last row, as far as they were released."""
        return self._released

    @property
    def available(self) -> int:
        """Leading positions that wait for no row."""
        if self._num_known < len(self._positions):
            return int(self._positions[self._num_known])
        if self._next < self._released:
            return self._next
        return ALL if self._has_end else self._released

    @property
    def has_all(self) -> bool:
        """Returns whether no further row will come."""
        return self.available == ALL

    @property
    def last_known(self) -> int | None:
        """The last position of a row that was known from the start, when those have come."""
        if self._num_known < len(self._positions) or not len(self._positions):
            return None
        return int(self._positions[-1])

    def are_in(self, chunk: Chunk[Edge]) -> bool:
        """Returns whether a chunk has rows, and not its end alone."""
        return self._store.declared.name in chunk.tensors

    def add(self, chunk: Chunk[Edge]) -> None:
        """Take rows and their `positions` upstream; raises ValueError for rows of another kind."""
        raw = self._store.raw(chunk.tensors[self._store.declared.name])
        positions = self._positions_of(chunk.tensors["positions"].numpy())
        if len(positions) != len(raw):
            raise ValueError(f"{len(raw)} rows with {len(positions)} positions")
        which = np.flatnonzero(self.places[positions] == AWAITED)
        if len(which) > 1:  # a chunk may hold a row twice
            which = which[np.unique(positions[which], return_index=True)[1]]
        if len(which):
            positions = positions[which]
            self.places[positions] = self._store.put(raw[which])
            self._most = max(self._most, int(positions.max()) + 1)
            self._advance()

    def _positions_of(self, sources: Ints) -> Longs:
        """Where rows go."""
        upstream = sources.astype(np.int64)
        follows = upstream >= self._source
        positions = np.where(follows, upstream - self._source + self._first, self._last)
        if len(self._sources) and not follows.all():
            index = np.searchsorted(self._sources, upstream).clip(0, len(self._sources) - 1)
            is_known = self._sources[index] == upstream
            positions = np.where(is_known, self._positions[index], positions)
        return np.minimum(positions, self._last)

    def _advance(self) -> None:
        known = self.places[self._positions[self._num_known :]]
        self._num_known += _leading(known != AWAITED)
        self._next += _leading(self.places[self._next : self._most] != AWAITED)

    def release(self, message: RowsReleased, last: bool) -> None:
        """So many leading rows of upstream count; rows behind the last are forgotten."""
        if self._has_end:
            return
        position = self._first + max(0, message.num_rows - self._source)
        self._released = max(self._released, min(position, self._last))
        if last:
            self._has_end = True
            self._forget(self.places[self._released :])

    def close(self) -> None:
        """Forget the rows that were not computed."""
        self._forget(self.places)

    def _forget(self, places: Ints) -> None:
        self._store.drop(places[places > 0])
        places[:] = NO_ROW


def _leading(flags: npt.NDArray[np.bool_]) -> int:
    """How many are set before the first that is not."""
    return len(flags) if flags.all() else int(flags.argmin())
