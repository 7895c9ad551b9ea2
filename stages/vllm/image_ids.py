"""Stages whose engine makes image ids; each of their requests knows how many it makes."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from vllm.platforms import current_platform

from omnistage.stage_configs.rules.own_arguments import Owned, with_own
from omnistage.stages.messages.to_gateway import Ready, Step
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.answers.seeds import derived_seed
from omnistage.stages.vllm.answers.truncation import take_over
from omnistage.stages.vllm.compat import RequestOutputKind, SamplingParams
from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.engine.warm_up import kinds_of_speech, warm_up
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.step.step_schema import ColumnLayout, StepSchema
from omnistage.stages.worker.stage import StagePorts

SAMPLED = ("temperature", "top_p", "top_k", "repetition_penalty")
STREAM_INTERVAL = 32  # ids of a prompt between two signs of life


class IdSteps:
    """Tells the gateway how many ids of a request are made, as far as its client reads."""

    def __init__(self, ports: StagePorts, request_id: str, num_ids: int) -> None:
        self._ports = ports
        self._request_id = request_id
        self._num_ids = num_ids
        self._num_made = 0

    def add(self, num_made: int) -> None:
        """So many more are made. One credit is left for the stamps of the request."""
        self._num_made += num_made
        if self._ports.outputs.credit(self._request_id) > 1:
            step = Step("image", self._num_made, self._num_ids)
            self._ports.send_output(self._request_id, step)


def tell_nobody(num_made: int) -> None:
    """Ids of a warm-up were made."""


class ImageIdsStage(EngineStage):
    """One AsyncLLM that makes image ids. `start` makes it; requests are run by `_generated`."""

    _sampling: Mapping[str, Any]
    _max_model_len: int

    def __init__(self, ports: StagePorts, schema: StepSchema, product: str) -> None:
        """Take ports, and what leaves by them; raises ValueError without an edge."""
        if not ports.downstream:
            raise ValueError(f"stage {ports.name} has no edge: nobody takes its {product}")
        self._ports = ports
        self._layout = ColumnLayout(schema.columns)

    def _engine_options(self, own: Owned) -> dict[str, object]:
        """Return the engine's arguments, with the stage's own; raises ValueError for those."""
        return {
            "skip_tokenizer_init": True,
            "stream_interval": STREAM_INTERVAL,
            "dtype": "bfloat16" if current_platform.is_cuda_alike() else "float32",
            **with_own(self._ports.engine, own),
        }

    async def _make_ready(self, usual: Mapping[str, Any], no_weights: str) -> Ready:
        """Warm up the engine, and take control of it.

        `usual`: the sampling that the engine's own configuration overrides. `no_weights`: why it
        takes no others.
        """
        told = self._engine.model_config.get_diff_sampling_param()
        self._sampling = {**usual, **{name: told[name] for name in SAMPLED if name in told}}
        self._max_model_len = self._engine.model_config.max_model_len
        numbers = itertools.count()

        async def answer(length: int, **kind: Any) -> None:
            name, lanes = f"warm-up-{next(numbers)}", range(self._ports.num_lanes)
            made = (self._warm(f"{name}-{lane}", max(length, 1), kind, lane) for lane in lanes)
            await asyncio.gather(*made)

        await answer(0)
        await warm_up(self._engine.vllm_config, answer, kinds_of_speech())
        self._control = EngineControl(self._engine, no_weights, stage=self._ports.name)
        return Ready(max_model_len=self._max_model_len, commands=self._control.commands)

    async def _warm(
        self, request_id: str, num_tokens: int, sampling: Mapping[str, Any], lane: int
    ) -> None:
        """Make the ids of a prompt of so many tokens."""
        raise NotImplementedError

    def _seed(self, request: Request, row: int) -> dict[str, int]:
        if request.seed is None:
            return {}
        return {"seed": derived_seed(request.seed, f"{self._ports.stage}-{row}")}

    async def _generated(
        self,
        request_id: str,
        ids: list[int],
        num_made: int,
        sampling: Mapping[str, Any],
        extra_args: dict[str, Any],
        lane: int,
        headers: Mapping[str, str] | None,
        tell: Callable[[int], None],
    ) -> list[int]:
        """Return all ids that follow on a prompt's, once the last of them is there.

        `tell` is called as they are made, with how many more there are.
        """
        params = SamplingParams(
            **{**self._sampling, **sampling},
            max_tokens=num_made,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra_args,
        )
        take_over(params)
        generated = self._engine.generate(
            {"prompt_token_ids": ids},
            params,
            request_id,
            trace_headers=headers,
            data_parallel_rank=lane,
        )
        made: list[int] = []
        async for output in generated:
            ids_now = output.outputs[0].token_ids
            made += ids_now
            tell(len(ids_now))
        return made
