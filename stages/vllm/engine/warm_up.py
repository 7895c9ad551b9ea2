"""Prompts that an engine answers before it is ready, so that no request waits for a compiler."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.vllm.answers.chat import ChatServing
from omnistage.stages.vllm.compat import (
    CLIENT_ERRORS,
    AsyncLLM,
    LoRARequest,
    SamplingParams,
    StructuredOutputsParams,
)

logger = logging.getLogger(__name__)

Kind = JsonMap

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
FILTERS: tuple[Kind, ...] = ({"top_k": 50}, {"top_p": 0.8}, {"top_k": 50, "top_p": 0.8})
# Kinds of requests for which vLLM has code of its own: fields of SamplingParams, and `regex`.
# Ranks of logprobs are counted by a function that torch compiles on every platform, for 20 s on a
# slow CPU; what a grammar needs is made with the first of them. The others are a GPU's kernels.
KINDS_ANYWHERE: tuple[Kind, ...] = ({"logprobs": 1, "prompt_logprobs": 1}, {"regex": "[a-z]+"})
KINDS_OF_SPEECH: tuple[Kind, ...] = (
    {"temperature": 0.0},
    {"seed": None},
    {"repetition_penalty": 1.0},
    *FILTERS,
)
# A kernel finds the likeliest tokens of a row, compiled for each power of two that holds their
# number and the sampled one, for 1 alone, and for what 16 divides; requests have 0 to 20.
NUMS_OF_LOGPROBS = (0, 1, 3, 7, 10, 15, 20)
KINDS_OF_TEXT: tuple[Kind, ...] = (
    *KINDS_ANYWHERE,
    *({"logprobs": num} for num in NUMS_OF_LOGPROBS),
    {"temperature": 0.0},
    {"seed": 1},
    {"min_p": 0.1},
    *FILTERS,
    {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    {"logit_bias": {0: 1.0}},
    {"allowed_token_ids": [0, 1]},
    {"min_tokens": 2},
    {"bad_words": ["no"]},
)


def warm_up_lengths(config: VllmConfig) -> list[int]:
    """Prompt lengths, each a step of its own, that together make a GPU compile all it will need."""
    if not current_platform.is_cuda_alike():
        return []
    most = min(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len)
    beyond = (config.compilation_config.max_cudagraph_capture_size or 0) + BEYOND_GRAPHS
    fitting = {length for length in (beyond, *TUNED_LENGTHS) if beyond <= length < most - 1}
    longest = (most - 2) // 8 * 8
    return sorted(length - odd for length in {*fitting, longest} for odd in (0, ODD))


def warm_up_samplings(config: VllmConfig) -> list[tuple[int, Kind]]:
    """Numbers of requests to sample at once, and how, that make a GPU compile all it will need."""
    if not current_platform.is_cuda_alike():
        return []
    most = config.scheduler_config.max_num_seqs
    return [(count, keep) for count in SAMPLED_TOGETHER if count <= most for keep in FILTERS]


def num_lanes(engine: AsyncLLM) -> int:
    """Engines that share its requests; each compiles for itself."""
    return int(engine.vllm_config.parallel_config.data_parallel_size)


Answer = Callable[..., Awaitable[None]]


async def warm_up(config: VllmConfig, answer: Answer, kinds: Sequence[Kind]) -> None:
    """Await `answer(length, **kind)` for each prompt length, number of requests and kind."""
    for length in warm_up_lengths(config):
        await answer(length)
    for count, filters in warm_up_samplings(config):
        await asyncio.gather(*(answer(SAMPLED_LENGTH, **filters) for _ in range(count)))
    for kind in kinds:
        await answer(SAMPLED_LENGTH, **kind)
    if current_platform.is_cuda_alike():  # and those that may run in one step, at once
        together = [kind for kind in kinds if "prompt_logprobs" not in kind]
        await asyncio.gather(*(answer(SAMPLED_LENGTH, **kind) for kind in together))


def kinds_of_text() -> Sequence[Kind]:
    """Kinds of requests for texts that this platform compiles code for."""
    return KINDS_OF_TEXT if current_platform.is_cuda_alike() else KINDS_ANYWHERE


def kinds_of_speech() -> Sequence[Kind]:
    """Kinds of requests for speech that this platform compiles code for."""
    return KINDS_OF_SPEECH if current_platform.is_cuda_alike() else ()


async def warm_up_text(engine: AsyncLLM, chat: ChatServing) -> None:
    """Let an engine of texts answer all of it; nothing stays in its prefix cache.

    A kind that it refuses, such as `min_p` beside drafts, is left out: it refuses every such
    request.
    """
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 2}
    async for _ in chat.stream("warm-up", body):
        pass
    numbers = itertools.count()

    async def answer(length: int, **kind: Any) -> None:
        number = next(numbers)  # its token: a prompt that begins as another would be cached
        try:
            await asyncio.gather(*(answer_in(lane, number, length, kind) for lane in range(lanes)))
        except CLIENT_ERRORS as error:
            logger.info("the engine takes no requests with %s: %s", ", ".join(kind), error)

    async def answer_in(lane: int, number: int, length: int, kind: Kind) -> None:
        prompt = {"prompt_token_ids": [number] * length}
        name = f"warm-up-{number}-{lane}"
        async for _ in engine.generate(prompt, _params(kind), name, data_parallel_rank=lane):
            pass

    lanes = num_lanes(engine)
    await warm_up(engine.vllm_config, answer, kinds_of_text())
    await engine.reset_prefix_cache()


async def warm_up_adapters(engine: AsyncLLM, adapters: Sequence[LoRARequest]) -> None:
    """Let an engine answer with one of its adapters: without CUDA graphs nothing else has yet.

    Steps are of one token, of a number that 16 divides, and of another.
    """
    if not (adapters and current_platform.is_cuda_alike()):
        return
    lengths = (SAMPLED_LENGTH, SAMPLED_LENGTH - ODD)
    for lane, length in itertools.product(range(num_lanes(engine)), lengths):
        answer = engine.generate(
            {"prompt_token_ids": [length] * length},  # neither begins as the other
            SamplingParams(max_tokens=2),
            f"warm-up-adapter-{lane}-{length}",
            lora_request=adapters[0],
            data_parallel_rank=lane,
        )
        async for _ in answer:
            pass
    await engine.reset_prefix_cache()


def _params(kind: Kind) -> SamplingParams:
    """Make parameters of two tokens, with a grammar of their own: it is changed for the engine."""
    fields = {"max_tokens": 2, **kind}
    regex = fields.pop("regex", None)
    if regex is not None:
        fields["structured_outputs"] = StructuredOutputsParams(regex=regex)
    return SamplingParams(**fields)
