"""One engine step for keys and values: the scheduler half writes it, the worker half reads it."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from omnistage.stages.vllm.step.request_options import RequestOptions


@dataclass(frozen=True, slots=True)
class DueKv:
    """A prompt that a step computes to its end: what of it leaves after the step.

    `blocks`: the request's, in order, those from the prefix cache among them.
    """

    request_id: str
    options: RequestOptions
    blocks: list[int]
    num_tokens: int


@dataclass(slots=True)
class KvMeta(KVConnectorMetadata):
    """`due` leave after the step's forward.

    Nothing more leaves of `dropped`, which have ended, and of `preempted`, whose blocks the forward
    may write. `is_idle`: nothing is computed.
    """

    due: list[DueKv] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    is_idle: bool = False
