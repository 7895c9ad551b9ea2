"""Checkpoints with quantized weights, served: log probabilities as of their dequantized weights."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from support.models.quantized_text import FORMATS, quantized_twin, write_quantized
from support.stages.text_stage import TextHarness, hello, running_text
from transformers import Qwen3ForCausalLM

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

# By format the engine's dtype, and the most that log probabilities may be off on average. vLLM has
# AWQ in half precision only. FP8 rounds inputs too: where one lies between two steps, another last
# bit is another step of 6 %, so there are fewer of those in float32, and they are not none.
CASES = {"AWQ": ("float16", 0.01), "FP8": ("float32", 0.05)}
NUM_TOP = 20


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=sorted(FORMATS))
async def served(
    tiny_text: Path,
    tmp_path_factory: pytest.TempPathFactory,
    run_directory: Path,
    cpu_engine: None,
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[str, TextHarness]]:
    """The name of a format, and a stage that serves a checkpoint in it."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("quantized") / name
    write_quantized(tiny_text, folder, name)
    async with running_text(folder, run_directory, {"dtype": CASES[name][0]}, {}) as harness:
        yield name, harness


async def test_log_probabilities_are_those_of_the_dequantized_weights(
    served: tuple[str, TextHarness], tiny_text: Path
) -> None:
    name, text = served
    body = {
        **hello(),
        "logprobs": True,
        "top_logprobs": NUM_TOP,
        "return_tokens_as_token_ids": True,
    }
    chunks = await text.chunks("quantized", body)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    prompt: list[int] = chunks[0]["prompt_token_ids"]
    answer = [one for choice in choices for one in choice.get("token_ids") or ()]
    told = [one for choice in choices for one in (choice.get("logprobs") or {}).get("content", ())]
    assert len(told) == len(answer) == body["max_completion_tokens"]
    most = CASES[name][1]
    of_twin = error(quantized_twin(tiny_text, name), prompt, answer, told)
    assert of_twin < most
    # Weights that are read wrongly would be seen: the model that these were made of is far off.
    model = Qwen3ForCausalLM.from_pretrained(tiny_text).float().eval()
    of_source = error(model, prompt, answer, told)
    assert of_source > 3 * most


@torch.no_grad()
def error(model: Any, prompt: list[int], answer: list[int], told: list[Any]) -> float:
    """The mean difference of a told log probability to a model's, over all tokens."""
    logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)
    found = [
        abs(expected[place, int(top["token"].removeprefix("token_id:"))].item() - top["logprob"])
        for place, one in enumerate(told)
        for top in one["top_logprobs"]
    ]
    assert len(found) == NUM_TOP * len(answer)
    return float(sum(found) / len(found))
