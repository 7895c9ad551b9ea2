"""`make thinker-error`: how far a thinker of other arithmetic is from one in bfloat16.

Two engines of Qwen3-Omni's thinker with the same weights run one after the other: the base, in
bfloat16 on a GPU, in float32 on a CPU, and another, whose arguments `--other` adds to the base's
(by default those that quantize the thinker of `qwen3_omni_1gpu_80gb.yaml`). Both answer the same
prompts greedily. Then both read each prompt with the base's answer behind it, so that every token
has the same tokens before it, and the rows that a talker would get leave along an edge. Each line
is a JSON object:

- `equal`: the part of the base's tokens up to the first that differs in an answer, of all.
- `likeliest`: the part of the answers' tokens that are the other's likeliest, given those before.
- `mean_logprob`, `max_logprob`: absolute differences of the log-probabilities of all tokens read.
- `row_error`: the RMS of the rows' differences over the RMS of the base's rows.

Without `--model` the tiny checkpoint is read on a CPU, and on a GPU the real size with dummy
weights, whose likeliest tokens are much closer to each other than a trained model's.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from thinker_rows import TARGET, Rows, edge

from omnistage.bench.speech import Texts
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint
from omnistage.stages.qwen3_omni.thinker import THINKER
from omnistage.stages.qwen3_omni.thinker_model import thinker_config
from omnistage.stages.vllm.compat import AsyncLLM, RequestOutputKind, SamplingParams
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES

CHUNK_ROWS = 256
COMMON: Mapping[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 1024,
    "enable_prefix_caching": False,
    "limit_mm_per_prompt": {"image": 0, "audio": 0, "video": 0},
    "gpu_memory_utilization": 0.5,  # that must be free at the start
}
ON_CPU: Mapping[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": 64 << 20}
ON_GPU: Mapping[str, Any] = {"dtype": "bfloat16", "kv_cache_memory_bytes": 2 << 30}
QUANTIZING = ("quantization", "quantization_config")


@dataclass(frozen=True)
class Read:
    """A text that an engine has read: of each token but the first its log-probability, and whether
    it was the likeliest; the rows of all."""

    logprobs: torch.Tensor
    is_likeliest: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True)
class Heard:
    """One engine's own answers, and what it says of the base's: token ids with their prompts."""

    prompts: list[list[int]]
    answers: list[list[int]]
    read: list[Read]


async def hear(
    model: str, engine: Mapping[str, Any], texts: Sequence[str], base: Heard | None, length: int
) -> Heard:
    """Returns what an engine answers, and what it says of the base's answers; of its own without a
    base.
    """
    with edge() as (port, rows):
        bridge = BridgeConfig(HIDDEN_STATES, sinks=[Sink(TARGET, port, [CHUNK_ROWS])])
        started = make_engine(
            AsyncLLM, model, engine, bridge, thinker_config, stage="thinker", part=THINKER
        )
        try:
            asked = (answer(started, text, str(n), length) for n, text in enumerate(texts))
            prompts, answers = map(list, zip(*await asyncio.gather(*asked), strict=True))
            said = Heard(prompts, answers, []) if base is None else base
            wholes = [a + b for a, b in zip(said.prompts, said.answers, strict=True)]
            reading = (read(started, ids, f"whole-{n}", rows) for n, ids in enumerate(wholes))
            return Heard(prompts, answers, await asyncio.gather(*reading))
        finally:
            started.shutdown()


async def finished(
    engine: AsyncLLM, prompt: Any, name: str, more: Mapping[str, Any], extra: Any = None
) -> Any:
    """The whole output of one greedy request."""
    params = SamplingParams(
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=extra,
        **more,
    )
    async for output in engine.generate(prompt, params, name):
        last = output
    return last


async def answer(
    engine: AsyncLLM, text: str, name: str, length: int
) -> tuple[list[int], list[int]]:
    """The ids of a prompt, and those of its greedy answer."""
    output = await finished(engine, text, name, {"max_tokens": length})
    return list(output.prompt_token_ids), list(output.outputs[0].token_ids)


async def read(engine: AsyncLLM, ids: list[int], name: str, rows: Rows) -> Read:
    """Returns what an engine says of each token of a text."""
    extra = RequestOptions(name, [TARGET], ExportedRows()).extra_args()
    prompt = {"prompt_token_ids": ids}
    output = await finished(engine, prompt, name, {"max_tokens": 1, "prompt_logprobs": 1}, extra)
    said = list(zip(ids[1:], output.prompt_logprobs[1:], strict=True))
    told = [of[token].logprob for token, of in said]
    best = [max(one.logprob for one in of.values()) for _, of in said]  # vLLM's ranks count ties
    loop = asyncio.get_running_loop()
    own_rows = await loop.run_in_executor(None, rows.of, name)
    return Read(
        torch.tensor(told),
        torch.tensor(told) == torch.tensor(best),
        own_rows[: len(ids)],
    )


def error_of(base: Heard, other: Heard) -> dict[str, float]:
    """How far the other is from the base."""
    leading = [leading_equal(*pair) for pair in zip(base.answers, other.answers, strict=True)]
    num_tokens = sum(map(len, base.answers))
    pairs = list(zip(base.read, other.read, strict=True))
    differences = torch.cat([(two.logprobs - one.logprobs).abs() for one, two in pairs])
    of_answers = [
        read.is_likeliest[-len(ids) :] for read, ids in zip(other.read, base.answers, strict=True)
    ]
    squares = sum(float((two.rows - one.rows).square().sum()) for one, two in pairs)
    whole = sum(float(one.rows.square().sum()) for one, _ in pairs)
    return {
        "equal": sum(leading) / num_tokens,
        "likeliest": float(torch.cat(of_answers).float().mean()),
        "mean_logprob": float(differences.mean()),
        "max_logprob": float(differences.max()),
        "row_error": (squares / whole) ** 0.5,
    }


def leading_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """How many are equal before the first that is not."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((number for number, (a, b) in pairs if a != b), len(one))


def quantizing() -> dict[str, Any]:
    """Returns what quantizes the thinker of the graph for 80 GB."""
    engine = load_graph(GRAPHS / "qwen3_omni_1gpu_80gb.yaml").stages["thinker"].engine
    return {name: engine[name] for name in QUANTIZING}


def say(**told: Any) -> None:
    """One line, at once."""
    rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in told.items()}
    sys.stdout.write(f"{json.dumps(rounded)}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the base, then each other, and print how far it is."""
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a folder or a name; its weights are read")
    parser.add_argument("--dummy", action="store_true", help="of the model's size, without weights")
    parser.add_argument("--base", default="{}", help="engine arguments of both, in YAML")
    parser.add_argument(
        "--other", action="append", help="those of another, in YAML; may be given several times"
    )
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--words", type=int, default=60, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    asked = parser.parse_args()
    default: Mapping[str, Any] = quantizing() if has_gpu else {"dtype": "bfloat16"}
    others = [yaml.safe_load(text) for text in asked.other or ()] or [default]
    base = {**COMMON, **(ON_GPU if has_gpu else ON_CPU)}
    if asked.dummy or (asked.model is None and has_gpu):
        base["load_format"] = "dummy"
    base |= yaml.safe_load(asked.base)
    with tempfile.TemporaryDirectory() as name:
        model = Path(asked.model or name)
        if asked.model is None and has_gpu:
            write_real_size_folder(model)
        elif asked.model is None:
            write_tiny_checkpoint(model, 0)
        compare(asked.model or name, base, others, asked)


def compare(
    model: str, base: Mapping[str, Any], others: Sequence[Mapping[str, Any]], asked: Any
) -> None:
    """Each engine in turn; one holds the device at a time."""
    texts = [Texts(11, asked.words).text(number) for number in range(asked.prompts)]
    expected: Heard | None = None
    for more in ({}, *others):
        began = time.monotonic()
        heard = asyncio.run(hear(model, {**base, **more}, texts, expected, asked.tokens))
        took_s = round(time.monotonic() - began, 1)
        if expected is None:
            expected = heard
            num_read = sum(len(read.logprobs) for read in heard.read)
            say(base=base, prompts=len(texts), tokens_read=num_read, seconds=took_s)
        else:
            say(other=more, **error_of(expected, heard), seconds=took_s)


if __name__ == "__main__":
    main()
