"""What an engine answers before it is ready, so that no request waits for a compiler."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from omnistage.stages.vllm.chat import Chat
from omnistage.stages.vllm.compat import AsyncLLM, SamplingParams

# vLLM's kernels for experts are tuned for these numbers of tokens and more, and compiled for each
# at its first use. Its CUDA graphs have seen the sizes up to the largest of them; a step of a few
# tokens more runs without, tuned for a size below.
TUNED_LENGTHS = (256, 512, 1024, 1536, 2048, 3072, 4096)
BEYOND_GRAPHS = 8
# Triton compiles anew for a number that 16 does not divide: of tokens times experts of each (an
# even number), so lengths are multiples of 8, and then less by this.
ODD = 3
# vLLM samples so many requests and more with a kernel of its own; 16 divides the second.
SAMPLED_TOGETHER = (8, 16)
SAMPLED_LENGTH = 16
FILTERS: tuple[dict[str, float], ...] = ({"top_k": 50}, {"top_p": 0.8}, {"top_k": 50, "top_p": 0.8})


def warm_up_lengths(config: VllmConfig) -> list[int]:
    """Prompt lengths, each a step of its own, that together make a GPU compile all it will need."""
    if not current_platform.is_cuda_alike():
        return []
    most = min(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len)
    beyond = (config.compilation_config.max_cudagraph_capture_size or 0) + BEYOND_GRAPHS
    fitting = {length for length in (beyond, *TUNED_LENGTHS) if beyond <= length < most - 1}
    longest = (most - 2) // 8 * 8
    return sorted(length - odd for length in {*fitting, longest} for odd in (0, ODD))


def warm_up_samplings(config: VllmConfig) -> list[tuple[int, dict[str, float]]]:
    """Numbers of requests to sample at once, and how, that make a GPU compile all it will need."""
    if not current_platform.is_cuda_alike():
        return []
    most = config.scheduler_config.max_num_seqs
    return [(count, keep) for count in SAMPLED_TOGETHER if count <= most for keep in FILTERS]


def num_lanes(engine: AsyncLLM) -> int:
    """Engines that share its requests; each compiles for itself."""
    return int(engine.vllm_config.parallel_config.data_parallel_size)


Answer = Callable[..., Awaitable[None]]


async def warm_up(config: VllmConfig, answer: Answer) -> None:
    """Await `answer(length, **filters)` for each prompt length, and for each way to sample."""
    for length in warm_up_lengths(config):
        await answer(length)
    for count, filters in warm_up_samplings(config):
        await asyncio.gather(*(answer(SAMPLED_LENGTH, **filters) for _ in range(count)))


async def warm_up_text(engine: AsyncLLM, chat: Chat) -> None:
    """Let an engine of texts answer all of it; nothing stays in its prefix cache."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 2}
    async for _ in chat.stream("warm-up", body):
        pass
    numbers = itertools.count()

    async def answer(length: int, **filters: Any) -> None:
        number = next(numbers)  # its token: a prompt that begins as another would be cached
        await asyncio.gather(*(answer_in(lane, number, length, filters) for lane in range(lanes)))

    async def answer_in(lane: int, number: int, length: int, filters: Mapping[str, Any]) -> None:
        prompt = {"prompt_token_ids": [number] * length}
        params = SamplingParams(max_tokens=2, **filters)
        name = f"warm-up-{number}-{lane}"
        async for _ in engine.generate(prompt, params, name, data_parallel_rank=lane):
            pass

    lanes = num_lanes(engine)
    await warm_up(engine.vllm_config, answer)
    await engine.reset_prefix_cache()
