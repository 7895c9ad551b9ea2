"""One engine step for the bridge: the scheduler half writes it, the worker half reads it."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from omnistage.stages.vllm.step.request_options import RequestOptions

OVERDUE = "omnistage: the next input did not come in time"  # a stop reason

# The bridge's own columns of StepMeta.columns and of StepTable.columns, one line a scheduled token;
# those that a family declares follow (step_schema.py).
SLOT, ROW, FRAME, LAST, HIDDEN = range(5)
NUM_OWN = 5

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StartedRequest:
    """A request that was given a row in this step."""

    row: int
    request_id: str
    options: RequestOptions | None


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that left its row before this step's work."""

    row: int
    request_id: str


@dataclass(frozen=True, slots=True)
class Replay:
    """Rows of a request that were kept: they leave before those that a step computes.

    `positions` int32 [n], and the `places` int64 [n] where they are.
    """

    row: int
    positions: Ints
    places: npt.NDArray[np.int64]


@dataclass(slots=True)
class StepMeta(KVConnectorMetadata):
    """One step: its tokens in the bridge's own order, 0 to n - 1.

    `columns` int32 [n, words]. FRAME counts a request's decode steps from 0 and is -1 in a prefill.
    HIDDEN is 1 + the index into `hidden` of the row that replaces the token's embedding, 0 for
    none. `hidden` is raw bytes [h, row bytes].
    `export` holds, for each token whose hidden state leaves, its index; `export_positions` its
    absolute position; `export_places` where its row is kept, -1 if it is not. The last `num_held`
    of them are drafts, whose rows wait. `accepted` holds those of the step before that leave now,
    by their index among the rows that waited.
    """

    columns: Ints | None = None
    num_decodes: int = 0
    hidden: npt.NDArray[np.uint8] | None = None
    export: npt.NDArray[np.int64] | None = None
    export_positions: Ints | None = None
    export_places: npt.NDArray[np.int64] | None = None
    num_held: int = 0
    accepted: npt.NDArray[np.int64] | None = None
    replays: list[Replay] = field(default_factory=list)
    started: list[StartedRequest] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
