"""A scheduler and the bridge of a consumer, whose rows come late, without a model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.inprocess import InProcessConnector
from omnistage.stages.messages.edge import EDGE, Rows
from omnistage.stages.vllm.bridge.late_inputs import LateInputs
from omnistage.stages.vllm.bridge.request_inputs import RequestInputs
from omnistage.stages.vllm.bridge.scheduler_half import SchedulerHalf
from omnistage.stages.vllm.rows.row_store import RowStore
from omnistage.stages.vllm.step.request_options import RequestOptions, late_input_options
from omnistage.stages.vllm.step.step import HIDDEN, NUM_OWN, StepMeta
from omnistage.stages.vllm.step.step_schema import Column, ColumnLayout, RowInput, StepSchema
from omnistage.stages.worker.ledger import Ledger

SCHEMA = StepSchema(
    (Column("text", after_rows=True), Column("position", counts=True)), RowInput(2, dtype="int32")
)
LAYOUT = ColumnLayout(SCHEMA.columns)
MAX_LEN, BLOCK, SEATS, LEAST = 48, 4, 3, 4
VOICE, END, PAD = 700, 701, 702


def request_options(name: str, num_prompt: int) -> RequestOptions:
    """Upstream's row s goes to position s of its prompt, behind a voice's token to s + 1."""
    text = [-1] * num_prompt + [VOICE, -1]
    positions = np.arange(num_prompt, dtype=np.int32)
    return late_input_options(
        name,
        LAYOUT.pack(len(text), {"text": text, "position": np.arange(len(text)) + 10}),
        hidden_positions=positions,
        hidden_sources=positions,
        following=(num_prompt, num_prompt + 1),
        position_delta=10,
        ends={"text": (END, PAD)},
    )


def opened(num_prompt: int) -> RequestInputs:
    store = RowStore(RowInput(2), torch.int32)
    late = request_options("a", num_prompt).late
    assert late is not None
    return RequestInputs("a", late, LAYOUT, MAX_LEN, store)


def rows(name: str, sources: Sequence[int]) -> Chunk[Any]:
    """Each row says whose it is and which."""
    values = np.array([[ord(name[-1]), source] for source in sources], np.int32).reshape(-1, 2)
    positions = Tensor.from_numpy(np.array(sources, np.int32))
    return Chunk(name, Rows(), 0, {"hidden": Tensor.from_numpy(values), "positions": positions})


class Engine:
    """The scheduler half behind a channel, asked and told as vLLM's scheduler does.

    It remembers what each token that it took was computed from.
    """

    def __init__(self, directory: Path) -> None:
        self.connector = InProcessConnector(directory)
        self.connector.create("rows")
        self.sender = self.connector.sender("rows")
        late = LateInputs(
            [self.connector.receiver("rows", EDGE)], SCHEMA, torch.float32, MAX_LEN, 60, 10
        )
        config: Any = SimpleNamespace(
            scheduler_config=SimpleNamespace(
                max_num_seqs=SEATS, max_num_batched_tokens=2 * MAX_LEN, enable_chunked_prefill=True
            ),
            model_config=SimpleNamespace(max_model_len=MAX_LEN),
            kv_transfer_config=SimpleNamespace(engine_id="rows"),
            parallel_config=SimpleNamespace(data_parallel_size=1),
        )
        self.ledger = Ledger(directory / "held")
        self.half = SchedulerHalf(config, BLOCK, late, self.ledger, LEAST)
        assert late.store is not None
        self.store = late.store
        self.running: dict[str, Any] = {}
        self.finished: set[str] = set()
        self.new: set[str] = set()
        self.read: dict[str, list[tuple[int, int, int]]] = {}  # whose row, which, and the text

    def add(self, name: str, num_prompt: int) -> None:
        params = SimpleNamespace(extra_args=request_options(name, num_prompt).extra_args())
        self.running[name] = SimpleNamespace(
            request_id=name,
            req_id=name,
            sampling_params=params,
            num_computed_tokens=0,
            num_prompt_tokens=num_prompt + 2,
            prompt_token_ids=[0] * (num_prompt + 2),
            block_ids=(list(range(1, MAX_LEN // BLOCK + 1)),),
        )
        self.read[name] = []
        self.new.add(name)
        self.half.expect(self.running[name])

    def finish(self, name: str) -> None:
        del self.running[name]
        self.half.forget(name)
        self.finished.add(name)
        self.new.discard(name)

    def send(self, chunk: Chunk[Any]) -> None:
        self.sender.send(chunk)
        self.half.collect()

    def step(self) -> dict[str, int]:
        """One step: prompts whole or in part, and decodes, of all that can run."""
        part = self.half.choose_part(self.running.values(), (), True)
        counts = {}
        for name, request in self.running.items():
            left = request.num_prompt_tokens - request.num_computed_tokens
            if not self.half.can_run(request) or request.num_computed_tokens == MAX_LEN:
                continue
            is_part = part is not None and part.request_id == name
            counts[name] = part.num_tokens if is_part and part else max(left, 1)
        meta = self.half.build(self._output(counts))
        self._remember(meta, counts)
        return counts

    def _output(self, counts: dict[str, int]) -> Any:
        cached = [name for name in counts if name not in self.new]
        output = SimpleNamespace(
            finished_req_ids=self.finished,
            scheduled_new_reqs=[self.running[name] for name in counts if name in self.new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=cached,
                new_block_ids=[None] * len(cached),
                num_computed_tokens=[self.running[name].num_computed_tokens for name in cached],
                resumed_req_ids=set(),
            ),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
        )
        self.finished = set()
        return output

    def _remember(self, meta: StepMeta, counts: dict[str, int]) -> None:
        line = 0
        for name, count in counts.items():
            assert meta.columns is not None
            for one in meta.columns[line : line + count]:
                whose, which = 0, -1
                if one[HIDDEN]:
                    assert meta.hidden is not None
                    whose, which = meta.hidden[one[HIDDEN] - 1].view(np.int32).tolist()
                self.read[name].append((whose, which, int(one[NUM_OWN])))
            line += count
            self.running[name].num_computed_tokens += count
            self.new.discard(name)

    def expected(self, name: str, num_prompt: int, num_rows: int) -> list[tuple[int, int, int]]:
        """What a request's tokens are made of whose upstream had so many rows."""
        letter = ord(name[-1])
        prompt = [(letter, source, -1) for source in range(num_prompt)]
        reply = [(letter, source, -1) for source in range(num_prompt, num_rows)]
        ends = [(0, -1, END), *[(0, -1, PAD)] * MAX_LEN]
        return [*prompt, (0, -1, VOICE), *reply, *ends][: len(self.read[name])]


@contextmanager
def running_engine(directory: Path) -> Iterator[Engine]:
    engine = Engine(directory)
    try:
        yield engine
    finally:
        engine.sender.close()
        engine.half.shutdown()
        engine.connector.destroy("rows")
        engine.ledger.close()
