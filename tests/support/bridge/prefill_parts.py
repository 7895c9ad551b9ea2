"""A scheduler that reads prompts in parts, without a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Sender
from omnistage.stages.messages.edge import Rows, StageTokens
from omnistage.stages.qwen3_omni.step_schema import TALKER_COLUMNS
from omnistage.stages.vllm.bridge.late_rows import ALL
from omnistage.stages.vllm.step.request_options import late_input_options
from omnistage.stages.vllm.step.step_schema import ColumnLayout

CODE = 7


class Scheduled:
    """A scheduler, the sender of its feed, and what came and was taken of each request."""

    def __init__(self, scheduler: Any, feed: Sender) -> None:
        self.scheduler = scheduler
        self.feed = feed
        self.half = scheduler.connector.scheduler_half
        self.ready: dict[str, int] = {}  # leading tokens whose inputs have come
        self.length: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.missing: dict[str, Sequence[int]] = {}  # hidden rows that have not come
        self.has_tokens: set[str] = set()

    def add(self, name: str, length: int, hidden: Sequence[int]) -> None:
        """A request whose prompt has hidden rows at these positions."""
        positions = np.array(hidden, np.int32)
        options = late_input_options(
            name,
            ColumnLayout(TALKER_COLUMNS).pack(length, {}),
            hidden_positions=positions,
            hidden_sources=positions,
            first_token_position=length - 1,
            position_delta=0,
            ends={"tokens": (1, 2)},
        )
        params = SamplingParams(max_tokens=2, ignore_eos=True, extra_args=options.extra_args())
        self.scheduler.add_request(Request(name, [0] * length, params, None))
        self.length[name], self.taken[name] = length, 0
        self.has_tokens.discard(name)
        self._note(name, hidden)

    def send_rows(self, name: str, positions: Sequence[int], rest: Sequence[int]) -> None:
        """Hidden rows; `rest` are those that have not come yet."""
        rows = {
            "hidden": Tensor.from_numpy(np.zeros((len(positions), 4), np.float32)),
            "positions": Tensor.from_numpy(np.array(positions, np.int32)),
        }
        self.feed.send(Chunk(name, Rows(), 0, rows))
        self._note(name, rest)

    def send_tokens(self, name: str) -> None:
        """The first token, and that no other follows."""
        tokens = {"tokens": Tensor.from_numpy(np.array([3], np.int32))}
        self.feed.send(Chunk(name, StageTokens(), 0, tokens, True))
        self.has_tokens.add(name)
        self._note(name, self.missing[name])

    def _note(self, name: str, missing: Sequence[int]) -> None:
        """How far the leading tokens have their inputs."""
        self.missing[name] = missing
        tokens = ALL if name in self.has_tokens else self.length[name] - 1
        self.ready[name] = min([tokens, *missing])

    def step(self) -> dict[str, int]:
        """Schedule and compute one step; how many tokens it took of which request."""
        output: SchedulerOutput = self.scheduler.schedule()
        counts = dict(output.num_scheduled_tokens)
        for name, count in counts.items():
            self.taken[name] += count
            assert self.taken[name] <= self.ready[name], "a token without its input"
        names = list(counts)
        sampled = [[CODE] if self.taken[name] >= self.length[name] else [] for name in names]
        indices = {name: number for number, name in enumerate(names)}
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index=indices,
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.told = self.scheduler.update_from_output(output, result)
        return counts

    @property
    def num_blocks(self) -> int:
        """KV blocks in use, without the null block."""
        pool = self.scheduler.kv_cache_manager.block_pool
        used: int = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        return used
