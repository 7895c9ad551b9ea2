"""What the bridge is told of a rendered prompt, and whether it may read the prefix cache."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs

from omnistage.stages.vllm.answers.rendered import RenderedLLM
from omnistage.stages.vllm.answers.truncation import ARGUMENT
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.grammars.grammars import JudgedLLM
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions

NO_DRAFTS: Any = SimpleNamespace(speculative_config=None)
ALL = RequestOptions("a", exported=ExportedRows())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """What the engine was asked with."""
    seen: list[SamplingParams] = []

    async def generate(
        self: JudgedLLM, prompt: Any, sampling_params: SamplingParams, request_id: str
    ) -> AsyncGenerator[Any, None]:
        seen.append(sampling_params)
        yield prompt

    monkeypatch.setattr(JudgedLLM, "generate", generate)
    return seen


@pytest.mark.parametrize(
    ("has_row_cache", "bridge", "prompt_logprobs", "skips"),
    [
        (False, ALL, None, True),
        (False, None, None, False),
        (True, ALL, None, False),
        (True, ALL, 1, True),  # as vLLM wants it: it computes them
    ],
)
async def test_without_a_row_cache_a_prompt_whose_rows_leave_skips_the_prefix_cache(
    has_row_cache: bool,
    bridge: RequestOptions | None,
    prompt_logprobs: int | None,
    skips: bool,
    asked: list[SamplingParams],
) -> None:
    engine = RenderedLLM.__new__(RenderedLLM)
    engine.vllm_config = NO_DRAFTS
    engine.has_row_cache = has_row_cache
    engine.rendered = {"a": lambda prompt: bridge}
    params = SamplingParams(extra_args={"omnistage_id": "a"}, prompt_logprobs=prompt_logprobs)
    assert [one async for one in engine.generate("prompt", params, "r")] == ["prompt"]
    (params,) = asked
    assert bool(params.skip_reading_prefix_cache) is skips
    assert RequestOptions.of(params) == bridge


async def test_an_answer_that_depends_on_no_others_is_truncated_by_our_processor(
    asked: list[SamplingParams], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    engine = RenderedLLM.__new__(RenderedLLM)
    engine.vllm_config = NO_DRAFTS
    engine.rendered = {"a": lambda prompt: ALL}
    params = SamplingParams(extra_args={"omnistage_id": "a"}, top_k=5, top_p=0.9)
    assert [one async for one in engine.generate("prompt", params, "r")] == ["prompt"]
    (params,) = asked
    assert (params.top_k, params.top_p) == (0, 1.0)
    assert (params.extra_args or {})[ARGUMENT] == (5, 0.9)
    assert RequestOptions.of(params) == ALL
