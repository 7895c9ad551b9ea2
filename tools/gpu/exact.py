"""`make exact`: on a GPU, against transformers, CUDA graphs against eager mode, many against one.

A tiny checkpoint in float32 is served in three ways: eager; with full CUDA graphs; and compiled
with graphs, as vLLM does it by default. Graphs replay eager's own kernels: their codes must be the
same. Compiled kernels add up in another order, so now and then a code may differ from eager's. In
each of them, streams that run together must equal themselves alone. Questions with images, sound
and a video must get transformers' own answers on the same device. At last the thinker in bfloat16,
each token given, against transformers. With `--ranks 2` thinker and talker are shared among two
GPUs, and that last part is left out.
"""

import argparse
import asyncio
import os
import random
import string
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich.console import Console
from rich.table import Table
from support.api.prompts import QUESTIONS, Question, video_bytes, video_question
from support.oracles.agreement import ours, random_prompts, reference
from support.oracles.reference import Answer, Reference
from support.servers.server import Reply, TinyServer, running_server

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

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
    "full": {"compilation_config": {"cudagraph_mode": "FULL"}},
}
# Else Triton multiplies float32 as TF32 (vLLM's experts), cuBLAS and cuDNN may (code2wav).
NO_TF32 = {"TRITON_F32_DEFAULT": "ieee", "NVIDIA_TF32_OVERRIDE": "0"}
NUM_WORDS = 6
MAX_TOKENS, MAX_FRAMES = 16, 40


@dataclass(frozen=True)
class Answers:
    """The answers of one way of running: some questions alone, and all of them at once."""

    alone: list[Reply]
    together: list[Reply]
    with_media: list[Reply]


def exact_graph(folder: Path, way: str, has_gpu: bool, num_ranks: int = 1) -> Path:
    """The tiny graph for one way of running, thinker and talker over so many GPUs each."""
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    if has_gpu:
        for name, stage in graph["stages"].items():
            stage["environment"] = NO_TF32
            stage["gpus"] = [0]
            if name == "code2wav":
                stage["engine"] = {"num_slots": ENGINE["max_num_seqs"]}
            else:
                del stage["engine"]["enforce_eager"]
                stage["engine"] |= ENGINE | WAYS[way] | {"tensor_parallel_size": num_ranks}
                stage["gpus"] = list(range(num_ranks))
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
    together = await asyncio.gather(*(ask(*one) for one in asked))
    return Answers(alone, together, [await server.ask(one.messages) for one in media_questions()])


def media_questions() -> list[Question]:
    """Text, images, sound and a video."""
    return [*QUESTIONS, video_question(video_bytes(num_frames=4, size=64))]


def expected_answers(folder: Path, device: str) -> list[Answer]:
    """transformers' own, of the questions with media."""
    oracle = Reference(str(folder), device)
    return [oracle.answer(one, MAX_TOKENS, MAX_FRAMES) for one in media_questions()]


def media_table(found: dict[str, Answers], expected: list[Answer]) -> Table:
    """Each question's answer against transformers': text, codes, and how far the samples are."""
    table = Table("question", *found, title="as transformers: text, codes, largest difference")
    for number, (asked, answer) in enumerate(zip(media_questions(), expected, strict=True)):
        cells = []
        for result in found.values():
            reply = result.with_media[number]
            same_codes = np.array_equal(reply.codes, answer.codes)
            difference = np.abs(reply.pcm / 32767 - answer.pcm).max() if same_codes else np.nan
            cells.append(f"{reply.text == answer.text}, {same_codes}, {difference:.1e}")
        table.add_row(asked.name, *cells)
    return table


def agreement_table(folder: Path, graph: Path, device: str) -> Table:
    """How far the thinker in bfloat16 is from transformers, and that from itself in float32."""
    stage = yaml.safe_load(graph.read_text())["stages"]["thinker"]
    os.environ.update({key: str(value) for key, value in stage.get("environment", {}).items()})
    prompts = random_prompts(str(folder))
    made = {
        f"transformers, {name}": reference(str(folder), prompts, getattr(torch, name), device)
        for name in ("float32", "bfloat16")
    }
    for name in ("float32", "bfloat16"):
        engine = {**stage["engine"], "dtype": name}
        if name == "bfloat16":
            engine.pop("attention_backend", None)
        made[f"ours, {name}"] = ours(str(folder), prompts, engine)
    table = Table("one", "other", "same likeliest token", "largest logprob difference")
    for one, other in combinations(made, 2):
        share, largest = made[one].agreement(made[other])
        table.add_row(one, other, f"{share:.2%}", f"{largest:.4f}")
    return table


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
    parser.add_argument("--way", choices=tuple(WAYS), action="append", help="repeatable")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--alone", type=int, default=16)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=1, help="GPUs of thinker and talker each")
    parser.add_argument("--out", type=Path, help="a folder for logs")
    arguments = parser.parse_args()
    has_gpu = arguments.device == "gpu"
    found: dict[str, Answers] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_checkpoint(folder / "tiny", 0)
        device = "cuda" if has_gpu else "cpu"
        torch.backends.cudnn.allow_tf32 = False
        expected = expected_answers(folder / "tiny", device)
        for way in (arguments.way or WAYS) if has_gpu else ("eager",):
            graph = exact_graph(folder, way, has_gpu, arguments.ranks)
            log = (arguments.out or folder) / f"{way}.log"
            with running_server(str(graph), log, "--model", str(folder / "tiny")) as server:
                asked = answers(server, arguments.streams, arguments.alone, arguments.frames)
                found[way] = asyncio.run(asked)
        tables = [media_table(found, expected)]
        if arguments.ranks == 1:
            os.environ.update(NO_TF32)
            graph = exact_graph(folder, "eager", has_gpu)
            tables.append(agreement_table(folder / "tiny", graph, device))
    base = next(iter(found))
    table = Table("way", "frames", "together as alone", f"together as {base}")
    for way, result in found.items():
        num_frames = sum(len(reply.codes) for reply in result.together)
        table.add_row(
            way,
            f"{num_frames} of {arguments.streams * arguments.frames}",
            num_equal(result.alone, result.together),
            num_equal(result.together, found[base].together),
        )
    console = Console(width=100)
    console.print(table, *tables)


if __name__ == "__main__":
    main()
