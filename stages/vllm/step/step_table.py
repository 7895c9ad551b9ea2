"""Device buffers through which the worker half and a model's forward exchange one step's data.

A model finds its token's line by KV slot: `tok_of_slot[slot_mapping]`. Slots are known on every
model runner and captured by CUDA graphs, so nothing depends on the runner's order in the batch.
Index 0 of every buffer is a dummy for padding and profiling.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context, is_forward_context_available

from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.step_schema import ColumnLayout, StepSchema, torch_dtype

NO_SLOT = -2  # vLLM's padding is at slot -1


class StepTable:
    """One engine's buffers; the model makes it, the connector's worker half finds it by engine."""

    _by_engine: ClassVar[dict[str, "StepTable"]] = {}

    def __init__(self, vllm_config: VllmConfig, device: torch.device, schema: StepSchema) -> None:
        """`schema` is the model's own; raises ValueError if the engine's bridge has another."""
        scheduler = vllm_config.scheduler_config
        self.max_tokens = scheduler.max_num_batched_tokens
        self.num_rows = scheduler.max_num_seqs
        self.device = device
        self.schema = schema
        self.layout = ColumnLayout(schema.columns)
        self._engine_dtype = vllm_config.model_config.dtype
        self.columns = torch.zeros(
            self.max_tokens + 1, self.layout.num_words, dtype=torch.int32, device=device
        )
        self.columns[0, step.FRAME] = -1
        self.tok_of_slot: torch.Tensor | None = None
        self.numbers = torch.arange(1, self.max_tokens + 1, device=device)
        self.num_decodes = 0
        self._num_lines = 0
        self.export: torch.Tensor | None = None  # [max_tokens + 1, …], filled by the model
        self.on_ready: Callable[[], None] | None = None  # once, when the engine has its memory
        self.on_start: Callable[[list[step.StartedRequest]], None] | None = None
        self.on_hidden: Callable[[torch.Tensor], None] | None = None
        config = vllm_config.kv_transfer_config
        if config is not None:
            self._check(config.kv_connector_extra_config)
            self._by_engine[config.engine_id] = self

    def _check(self, extra: dict[str, object]) -> None:
        told = BridgeConfig.from_config(extra).schema
        if "omnistage" in extra and told != self.schema:
            raise ValueError(f"the model's step is {self.schema}; the bridge was told {told}")

    @classmethod
    def is_made(cls, engine_id: str) -> bool:
        """Returns whether a model of the engine in this process has made its table."""
        return engine_id in cls._by_engine

    @classmethod
    def of_engine(cls, engine_id: str) -> "StepTable":
        """The table that this process's model of the engine made."""
        return cls._by_engine[engine_id]

    def make_export(self, *shape: int) -> torch.Tensor:
        """The buffer [max_tokens + 1, *shape] of what leaves, of its declared dtype."""
        assert self.schema.export is not None
        dtype = torch_dtype(self.schema.export.dtype, self._engine_dtype)
        self.export = torch.zeros(self.max_tokens + 1, *shape, dtype=dtype, device=self.device)
        return self.export

    def write(self, columns: torch.Tensor) -> None:
        """A step's lines, int32 [n, words]. What the step before had behind them has no slot."""
        assert self.tok_of_slot is not None
        num_lines = len(columns)
        self.columns[1 : num_lines + 1] = columns
        if num_lines < self._num_lines:
            self.columns[num_lines + 1 : self._num_lines + 1, step.SLOT] = NO_SLOT
        self._num_lines = num_lines
        self.tok_of_slot[columns[:, step.SLOT].long()] = self.numbers[:num_lines]

    def take_rows(self, raw: torch.Tensor) -> None:
        """Hand the step's rows, raw bytes [h, row bytes], to the model as what they are."""
        if self.on_hidden is not None and self.schema.rows is not None:
            self.on_hidden(raw.view(torch_dtype(self.schema.rows.dtype, self._engine_dtype)))

    def read(self, columns: torch.Tensor, name: str) -> torch.Tensor:
        """A declared column [n, width] of lines of `columns`."""
        return self.layout.of_lines(columns, name)

    def lines(self, num_tokens: int) -> torch.Tensor:
        """The table line of each token of the runner's batch: int64 [num_tokens], 0 for padding.

        0 also for a token at a slot that the step does not name: with async scheduling and drafts
        positions are those without rejections, and the runner corrects them.
        """
        mapping = get_forward_context().slot_mapping if is_forward_context_available() else None
        if not mapping or self.tok_of_slot is None:
            return torch.zeros(num_tokens, dtype=torch.int64, device=self.device)
        slots = next(iter(mapping.values()))[:num_tokens]
        if slots.shape[0] < num_tokens:
            slots = F.pad(slots, (0, num_tokens - slots.shape[0]), value=-1)
        lines = self.tok_of_slot[slots.clamp_min(0)]
        return torch.where(self.columns[lines, step.SLOT] == slots, lines, 0)
