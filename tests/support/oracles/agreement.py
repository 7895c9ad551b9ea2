"""The thinker in bfloat16, each token given: how often the likeliest next token is the same.

Rounding to bfloat16 sends a few tokens to other experts, so that transformers in bfloat16 differs
from itself in float32 too: that is the measure of what ours may differ.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds
from omnistage.stages.qwen3_omni.thinker_model import thinker_config
from omnistage.stages.vllm.compat import AsyncLLM, SamplingParams
from omnistage.stages.vllm.engine.engine import make_engine

NUM_PROMPTS, LENGTH = 16, 256


@dataclass(frozen=True)
class Predictions:
    """Of each position: the likeliest next token, and the logprob of the one that was given."""

    likeliest: torch.Tensor
    logprob: torch.Tensor

    def agreement(self, other: "Predictions") -> tuple[float, float]:
        """The share of positions with the same likeliest token; the largest logprob difference."""
        share = (self.likeliest == other.likeliest).double().mean()
        return float(share), float((self.logprob - other.logprob).abs().max())


def random_prompts(folder: str) -> torch.Tensor:
    """Ids of plain words."""
    from transformers import AutoConfig

    ids = SpeechIds.of(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(0)
    return torch.randint(min(ids.im_start, *ids.media), (NUM_PROMPTS, LENGTH), generator=generator)


def reference(folder: str, prompts: torch.Tensor, dtype: torch.dtype, device: str) -> Predictions:
    """transformers'."""
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    thinker = model.thinker.eval().to(device)
    with torch.inference_mode():
        logits = torch.stack([thinker(row[None].to(device)).logits[0].cpu() for row in prompts])
    logprobs = logits.float().log_softmax(-1)[:, :-1]
    given = logprobs.gather(-1, prompts[:, 1:, None])[..., 0]
    return Predictions(logprobs.argmax(-1), given)


def ours(folder: str, prompts: torch.Tensor, engine: dict[str, Any]) -> Predictions:
    """vLLM's, of an engine with these arguments."""
    found = asyncio.run(_prompt_logprobs(folder, engine, prompts.tolist()))
    likeliest = [
        [next(token for token, one in line.items() if one.rank == 1) for line in lines[1:]]
        for lines in found
    ]
    logprob = [
        [line[token].logprob for token, line in zip(row[1:], lines[1:], strict=True)]
        for row, lines in zip(prompts.tolist(), found, strict=True)
    ]
    return Predictions(torch.tensor(likeliest), torch.tensor(logprob))


async def _prompt_logprobs(
    folder: str, options: dict[str, Any], prompts: list[list[int]]
) -> list[Any]:
    engine = make_engine(AsyncLLM, folder, options, None, thinker_config)
    params = SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)

    async def one(number: int, prompt: list[int]) -> Any:
        found = None
        async for output in engine.generate({"prompt_token_ids": prompt}, params, str(number)):
            found = output.prompt_logprobs or found
        return found

    try:
        return await asyncio.gather(*(one(*numbered) for numbered in enumerate(prompts)))
    finally:
        engine.shutdown()
