"""What an engine answers before it is ready."""

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.engine import warm_up
from omnistage.stages.vllm.engine.warm_up import (
    KINDS_OF_TEXT,
    NUMS_OF_LOGPROBS,
    ODD,
    kinds_of_speech,
    warm_up_adapters,
    warm_up_lengths,
    warm_up_samplings,
    warm_up_text,
)

TUNED = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096]


class Engine:
    """Notes the prompts that it is given."""

    def __init__(self, config: Any) -> None:
        self.vllm_config = config
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.refuses: Callable[[SamplingParams], bool] = lambda params: False
        self.is_cache_empty = True
        self.lanes: list[int] = []
        self.adapters: list[Any] = []

    async def generate(
        self,
        prompt: Any,
        params: Any,
        request_id: str,
        data_parallel_rank: int,
        lora_request: Any = None,
    ) -> AsyncIterator[str]:
        self.params.append(params)
        self.adapters.append(lora_request)
        if self.refuses(params):
            raise ValueError("not supported")
        self.lanes.append(data_parallel_rank)
        self.prompts.append(prompt["prompt_token_ids"])
        self.is_cache_empty = False
        yield request_id

    async def reset_prefix_cache(self) -> None:
        self.is_cache_empty = True


class Chat:
    """Answers at once."""

    async def stream(self, request_id: str, body: Any) -> AsyncIterator[str]:
        yield request_id


def config_of(captured: int, num_lanes: int = 1) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size=num_lanes),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048, max_num_seqs=64),
        model_config=SimpleNamespace(max_model_len=8192),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=captured),
    )


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "current_platform", SimpleNamespace(is_cuda_alike=lambda: True))


async def test_no_prompt_is_answered_from_the_prefix_cache() -> None:
    config = config_of(256)
    engine: Any = Engine(config)
    chat: Any = Chat()
    await warm_up_text(engine, chat)
    firsts = [prompt[0] for prompt in engine.prompts]
    assert len(firsts) == len(set(firsts))
    lengths = [len(prompt) for prompt in engine.prompts]
    assert lengths[: len(warm_up_lengths(config))] == warm_up_lengths(config)
    counts = [count for count, _ in warm_up_samplings(config)]
    together = [kind for kind in KINDS_OF_TEXT if "prompt_logprobs" not in kind]
    assert len(lengths) == len(warm_up_lengths(config)) + sum(counts) + len(
        [*KINDS_OF_TEXT, *together]
    )
    assert engine.is_cache_empty


async def test_each_kind_is_answered_alone_and_then_beside_the_others() -> None:
    engine: Any = Engine(config_of(256))
    chat: Any = Chat()
    await warm_up_text(engine, chat)
    ranked = [params for params in engine.params if params.logprobs is not None]
    assert [params.prompt_logprobs for params in ranked] == [1, *[None] * 2 * len(NUMS_OF_LOGPROBS)]
    assert [params.logprobs for params in ranked] == [1, *NUMS_OF_LOGPROBS, *NUMS_OF_LOGPROBS]
    grammars = [params.structured_outputs for params in engine.params if params.structured_outputs]
    assert [given.regex for given in grammars] == ["[a-z]+"] * 2
    assert grammars[0] is not grammars[1], "an engine changes it"


async def test_steps_of_each_kind_are_answered_with_one_adapter_if_there_is_any() -> None:
    engine: Any = Engine(config_of(256))
    await warm_up_adapters(engine, [])
    assert engine.adapters == []
    first: Any = "first"
    await warm_up_adapters(engine, [first, first])
    assert engine.adapters == [first, first]
    assert [len(prompt) for prompt in engine.prompts] == [16, 13]
    assert engine.is_cache_empty


async def test_a_kind_that_the_engine_refuses_is_left_out() -> None:
    engine: Any = Engine(config_of(256))
    engine.refuses = lambda params: params.min_p > 0
    chat: Any = Chat()
    await warm_up_text(engine, chat)
    tried = [params for params in engine.params if params.min_p > 0]
    assert len(engine.prompts) == len(engine.params) - len(tried)
    assert len(tried) == 2


async def test_a_cpu_compiles_for_ranks_of_logprobs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "current_platform", SimpleNamespace(is_cuda_alike=lambda: False))
    engine: Any = Engine(config_of(0))
    chat: Any = Chat()
    await warm_up_text(engine, chat)
    ranked, grammar = engine.params
    assert (ranked.logprobs, ranked.prompt_logprobs) == (1, 1)
    assert grammar.structured_outputs.regex
    assert kinds_of_speech() == ()


async def test_each_lane_answers_all_of_it() -> None:
    alone: Any = Engine(config_of(256))
    engine: Any = Engine(config_of(256, num_lanes=3))
    chat: Any = Chat()
    await warm_up_text(alone, chat)
    await warm_up_text(engine, chat)
    for lane in range(3):
        pairs = zip(engine.lanes, engine.prompts, strict=True)
        assert sorted(prompt for one, prompt in pairs if one == lane) == sorted(alone.prompts)


@pytest.mark.parametrize("captured", [128, 256, 512])
def test_each_tuned_size_that_a_step_without_graph_can_have_is_seen_even_and_odd(
    captured: int,
) -> None:
    def tuned(length: int) -> int:
        return min(TUNED, key=lambda size: abs(size - length))

    lengths = warm_up_lengths(config_of(captured))
    assert all(captured < length <= 2048 for length in lengths)
    for is_divided in (True, False):
        seen = {tuned(length) for length in lengths if (length % 8 == 0) == is_divided}
        possible = {tuned(length) for length in range(captured + 1, 2047)}
        assert possible <= seen, is_divided
    assert ODD % 2 == 1
