"""What a talker's engine is asked for."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs

from omnistage.stages.speech.talker_parts import SpokenPrompt
from omnistage.stages.speech.talker_stage import TalkerStage
from omnistage.stages.vllm.answers.truncation import ARGUMENT
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.step.request_options import RequestOptions


@pytest.mark.parametrize("is_invariant", [False, True])
async def test_a_warm_up_samples_as_requests_do(
    is_invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SamplingParams] = []

    async def generate(
        prompt: Any, params: SamplingParams, *_: Any, **__: Any
    ) -> AsyncGenerator[Any]:
        asked.append(params)
        yield prompt

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", is_invariant, raising=False)
    stage: Any = SimpleNamespace(
        warm_up_prompt=lambda request_id, length: SpokenPrompt([1, 2], RequestOptions("warm"), 2),
        _max_model_len=16,
        _sampling=lambda wanted, seed: SamplingParams(top_k=5, top_p=0.9),
        _engine=SimpleNamespace(generate=generate),
    )
    await TalkerStage._speak_nothing_in(stage, 0, "warm", 2, {})
    (params,) = asked
    assert ((params.extra_args or {}).get(ARGUMENT) == (5, 0.9)) is is_invariant
    assert (params.top_k == 0) is is_invariant
