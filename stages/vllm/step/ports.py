"""Where an engine's connector finds its channels."""

from collections.abc import Iterable

import msgspec

from omnistage.stage_configs.kinds import Payload
from omnistage.stages.vllm.step.step_schema import StepSchema
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Downstream


class Sink(msgspec.Struct, frozen=True):
    """An edge that an engine writes: the stage at its end, the port, and the sizes of its chunks.

    The last size repeats; none: everything in one chunk.
    """

    target: str
    port: Port
    chunk_sizes: list[int] = []


class BridgeConfig(msgspec.Struct, frozen=True):
    """The configuration of an engine's connector: `kv_connector_extra_config["omnistage"]`.

    `schema`: what the engine's tokens take and give. Its columns and rows are late inputs, which
    come from `feeds`, the first at most `first_chunk_s` after a request starts to wait, each next
    `next_chunk_s` later. `prefill_part`: the fewest tokens of a prompt that run before the rest of
    its inputs has come (None: an eighth of a step; 0: prompts run whole). What the schema exports
    the worker half publishes to `sinks`. `check_ranks`: whether ranks compare what they export.
    `sends_kv`: keys and values of prompts leave to `sinks`, and not what the schema exports.
    `row_cache_gib`: host memory for rows that were exported, so that requests whose rows leave may
    read the prefix cache (0: they do not). `ledger`: the file that counts what the engine holds
    (empty: none).
    """

    schema: StepSchema = StepSchema()
    feeds: list[Port] = []
    first_chunk_s: float = 120.0
    next_chunk_s: float = 30.0
    prefill_part: int | None = None
    sinks: list[Sink] = []
    check_ranks: bool = False
    sends_kv: bool = False
    row_cache_gib: float = 0.0
    ledger: str = ""

    @property
    def late_inputs(self) -> bool:
        """Returns whether the engine's requests wait for inputs."""
        return bool(self.schema.columns or self.schema.rows)

    def to_config(self) -> dict[str, object]:
        """Plain values for vLLM's configuration."""
        return {"omnistage": msgspec.to_builtins(self)}

    @classmethod
    def from_config(cls, config: dict[str, object]) -> "BridgeConfig":
        """Read it back in the engine's process."""
        return msgspec.convert(config.get("omnistage", {}), cls)


def sinks_of(edges: Iterable[Downstream], payload: Payload) -> list[Sink]:
    """The edges that an engine writes: hidden rows leave as a prefill makes them."""
    return [
        Sink(
            edge.target,
            edge.rows,
            edge.chunk_sizes if payload is Payload.CODES else edge.hidden_chunk_sizes,
        )
        for edge in edges
        if payload in edge.carries
    ]
