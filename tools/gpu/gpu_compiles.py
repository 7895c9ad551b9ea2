"""`make gpu-compiles`: what a text stage compiles for a request once it is ready, on one GPU.

A tiny model with an adapter is started with empty caches of compiled code, with CUDA graphs and
without. Then it answers a request of each kind, and a line says for each how often torch or Triton
compiled for it, and how long it took: whoever compiles without telling them, such as nvcc, is known
by seconds. What was compiled stands in the log between the lines. The exit code is 1 if anything
was. Without a GPU the same runs on a CPU, without the adapter and without compiled layers.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from support.models.text_loras import write_text_lora
from support.models.tiny_text import write_tiny_text
from support.servers.request_kinds import ADAPTER, KINDS, compiled_by
from support.stages.text_stage import LORA, running_text
from transformers import Qwen3ForCausalLM

from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.process.compiles import begin_counting, read_compiles

TOOLS = {"tool_parser": "hermes", "enable_auto_tools": True}
ON_A_GPU = {
    "dtype": "bfloat16",
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "jit_monitor_verbose": True,  # vLLM names the kernels in its log
}
ON_A_CPU = {"VLLM_CPU_CI_ENV": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
SLOW_S = 1.0


def say(line: str) -> None:
    """Print it between the lines of the engine's log."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def check(folder: Path, is_eager: bool) -> list[str]:
    """The kinds of requests for which one engine compiled, or took suspiciously long."""
    has_gpu = torch.cuda.is_available()
    model = folder / "tiny"
    options: dict[str, Any] = dict(TOOLS)
    engine: dict[str, Any] = {"enforce_eager": is_eager}
    if has_gpu:
        engine |= {**LORA, **ON_A_GPU}
        options["lora_modules"] = {ADAPTER: str(folder / ADAPTER)}
    kinds = [kind for kind in KINDS if has_gpu or not kind.startswith("adapter")]
    run = folder / f"run-{is_eager}"
    run.mkdir()
    begin_counting(run, "text")
    began_at = time.monotonic()
    found = []
    async with running_text(model, run, engine, options) as stage:
        seconds = time.monotonic() - began_at
        num = read_compiles().begun
        say(f"== enforce_eager: {is_eager}: ready in {seconds:.1f} s, compiled {num}")
        for kind in kinds:
            began_at = time.monotonic()
            try:
                num = await compiled_by(stage, kind)
            except RequestError as error:
                say(f"== {kind:30} refused: {error}")
                continue
            seconds = time.monotonic() - began_at
            is_slow = seconds > SLOW_S
            say(f"== {kind:30} {seconds:7.3f} s  compiled {num}{' SLOW' * is_slow}")
            if num or is_slow:
                found.append(f"{kind}: compiled {num} in {seconds:.1f} s")
    return found


def main() -> None:
    """Check both kinds of engines, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eager", choices=("yes", "no", "both"), default="both")
    chosen = parser.parse_args().eager
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT"):
            os.environ[variable] = str(folder / variable)
        os.environ |= {"TORCH_LOGS": "recompiles", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        if not torch.cuda.is_available():
            os.environ |= ON_A_CPU
        write_tiny_text(folder / "tiny")
        write_text_lora(Qwen3ForCausalLM.from_pretrained(folder / "tiny"), folder / ADAPTER, seed=0)
        found = []
        for is_eager in {"yes": [True], "no": [False], "both": [False, True]}[chosen]:
            found += [f"eager {is_eager}: {one}" for one in asyncio.run(check(folder, is_eager))]
    say("\n".join(["compiled after ready:", *found]) if found else "nothing compiled after ready")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
