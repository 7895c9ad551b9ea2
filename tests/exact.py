"""`make exact`: on a GPU, CUDA graphs against eager mode and many streams against one.

A tiny checkpoint in float32 is served in three ways: eager; with full CUDA graphs; and compiled
with graphs, as vLLM does it by default. Graphs replay eager's own kernels: their codes must be the
same. Compiled kernels add up in another order, so now and then a code may differ from eager's. In
each of them, streams that run together must equal themselves alone.
"""

import argparse
import asyncio
import random
import string
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from support.server import Reply, TinyServer, running_server

from omnistage.stages.pick import GRAPHS
from omnistage.stages.qwen3_omni.tiny import write_tiny_checkpoint

ENGINE = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 256 << 20,
    "gpu_memory_utilization": 0.05,
    "attention_backend": "TRITON_ATTN",  # the only one for float32
    "enable_prefix_caching": False,
}
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "graphs": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}},
    "compiled": {},
}
NUM_WORDS = 6


@dataclass(frozen=True)
class Answers:
    """What one way of running gave: some questions alone, and all of them at once."""

    alone: list[Reply]
    together: list[Reply]


def exact_graph(folder: Path, way: str, has_gpu: bool) -> Path:
    """The tiny graph for one way of running."""
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    if has_gpu:
        for name, stage in graph["stages"].items():
            stage.pop("environment", None)
            stage["gpus"] = [0]
            if name == "code2wav":
                stage["engine"] = {"num_slots": ENGINE["max_num_seqs"]}
            else:
                del stage["engine"]["enforce_eager"]
                stage["engine"] |= ENGINE | WAYS[way]
    path = folder / f"{way}.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


def questions(count: int) -> list[list[dict[str, Any]]]:
    """Messages of random words."""
    chance = random.Random(5)

    def word() -> str:
        return "".join(chance.choices(string.ascii_lowercase, k=4))

    return [
        [{"role": "user", "content": " ".join(word() for _ in range(NUM_WORDS))}]
        for _ in range(count)
    ]


async def answers(server: TinyServer, count: int, num_alone: int, num_frames: int) -> Answers:
    """Sampled answers, each with a seed of its own."""
    talker = {"max_tokens": num_frames, "ignore_eos": True}

    async def ask(seed: int, messages: list[dict[str, Any]]) -> Reply:
        fields = {"ignore_eos": True, "stage_params": {"talker": talker}, "seed": seed}
        return await server.stream(messages, max_completion_tokens=12, **fields)

    asked = list(enumerate(questions(count)))
    alone = [await ask(*one) for one in asked[:num_alone]]
    return Answers(alone, await asyncio.gather(*(ask(*one) for one in asked)))


def num_equal(ours: list[Reply], its: list[Reply]) -> str:
    """How many answers have the same text and the same codes."""
    pairs = list(zip(ours, its, strict=False))
    equal = sum(
        one.text == two.text and one.codes.tolist() == two.codes.tolist() for one, two in pairs
    )
    return f"{equal} of {len(pairs)}"


def main() -> None:
    """Serve each way in turn and print what is equal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--alone", type=int, default=16)
    parser.add_argument("--frames", type=int, default=40)
    arguments = parser.parse_args()
    has_gpu = arguments.device == "gpu"
    found: dict[str, Answers] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_checkpoint(folder / "tiny", 0)
        for way in WAYS if has_gpu else ("eager",):
            graph = exact_graph(folder, way, has_gpu)
            with running_server(
                str(graph), folder / "log", "--model", str(folder / "tiny")
            ) as server:
                asked = answers(server, arguments.streams, arguments.alone, arguments.frames)
                found[way] = asyncio.run(asked)
    table = Table("way", "frames", "together equal to alone", "together equal to eager")
    for way, result in found.items():
        num_frames = sum(len(reply.codes) for reply in result.together)
        table.add_row(
            way,
            f"{num_frames} of {arguments.streams * arguments.frames}",
            num_equal(result.alone, result.together),
            num_equal(result.together, found["eager"].together),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
