"""`make image-speed`: a pipeline below the step batcher against the same one bare, in turns.

The folder may have no weights (`omnistage tiny qwen-image DIR --real-size`): they are random then.
With `--offload`: what a picture takes of the device, in memory and time, by kind of offload.
With `--ladder attention=native_cudnn,compile,step_cache=first_block:threshold=0.1` and so on:
one pipeline, to which these changes are made one after another. After each of them: a picture's
seconds, how far it is from the unchanged one, and several at once beside the bare pipeline's one
call of as many; two of those at once are compared with the same alone, whose distance from each
other is beside it. `--quantization fp8` and `--compile` are such changes. Random weights tell speed
only: `--load-format auto` reads those of the folder.
"""

import argparse
import copy
import gc
import resource
import time
from statistics import median
from typing import Any

import torch
from comparison import CONSOLE, Comparison, flops_per_s
from ladder import Ladder, Rung

from omnistage.stages.device.devices import device_of
from omnistage.stages.device.memory import GIB
from omnistage.stages.diffusion.loading.float8 import QUANTIZATIONS
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions
from omnistage.stages.diffusion.loading.movable import Movable
from omnistage.stages.diffusion.loading.offload import OFFLOADS
from omnistage.stages.diffusion.loading.other_weights import modules_of


def compare(asked: argparse.Namespace) -> None:
    """The engine and the bare pipeline in turns; at the smaller side several pictures at once."""
    loaded = LoadOptions(load_format=asked.load_format).load(asked.folder)
    compared = Comparison(loaded, asked.steps)
    rate = flops_per_s(loaded.device, loaded.dtype)
    sides = (asked.side, asked.side // 2)
    for side in sides:
        floor_s = compared.num_flops(side) / rate
        compared.warm_up(compared.arguments(side))
        pairs = [
            (
                compared.ours_s(compared.arguments(side, seed)),
                compared.bare_s(compared.arguments(side, seed)),
            )
            for seed in range(asked.pairs)
        ]
        ratios = sorted(ours / bare for ours, bare in pairs)
        CONSOLE.print(
            f"side {side}: ours {median(ours for ours, _ in pairs):.3f} s, "
            f"bare {median(bare for _, bare in pairs):.3f} s, "
            f"ours over bare {median(ratios):.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f}), "
            f"floor {floor_s:.3f} s"
        )
    compare_at_once(compared, min(sides), asked.at_once)
    compared.close()


def compare_at_once(compared: Comparison, side: int, count: int) -> None:
    """So many requests, and the bare pipeline's one call for as many pictures."""
    ours_s, sizes = compared.ours_at_once_s(side, count)
    bare_s = compared.bare_at_once_s(side, count)
    CONSOLE.print(
        f"{count} at once, side {side}: ours {ours_s:.3f} s, forwards by requests {sizes}; "
        f"one call of the bare pipeline {bare_s:.3f} s"
    )


def compare_offloads(asked: argparse.Namespace) -> None:
    """One picture with each kind of offload and with none; the weights are read once."""
    started = time.perf_counter()
    device = device_of(None)
    read = LoadOptions(load_format=asked.load_format, offload=OFFLOADS[0]).read
    pipeline = read(asked.folder, device)
    CONSOLE.print(f"read in {time.perf_counter() - started:.1f} s")
    for kind in (*OFFLOADS, None):  # without offload the weights leave the host: that one is last
        options = LoadOptions(offload=kind)
        CONSOLE.print(f"offload {kind}:", measured(options.place(sharing(pipeline)), asked))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    seconds = time.perf_counter() - started
    CONSOLE.print(f"host: {peak:.1f} GiB at most; {seconds:.1f} s in all")


def sharing(pipeline: Any) -> Any:
    """A copy with the same weights, to be placed by itself."""
    weights = Movable(list(modules_of(pipeline).values())).tensors
    return copy.deepcopy(pipeline, {id(weight): weight for weight in weights})


def measured(loaded: LoadedPipeline, asked: argparse.Namespace) -> str:
    """A picture's seconds, what was on the device at most, and what stays there after it."""
    compared = Comparison(loaded, asked.steps)
    arguments = compared.arguments(asked.side)
    compared.warm_up(arguments)
    gc.collect()
    has_cuda = loaded.device.type == "cuda"
    if has_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    time_s = compared.ours_s(arguments)
    said = f"{time_s:.3f} s a picture of side {asked.side}"
    if has_cuda:
        used, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        said += f", peak {used / GIB:.1f} GiB ({reserved / GIB:.1f} reserved)"
        said += f", at rest {torch.cuda.memory_allocated() / GIB:.1f} GiB"
    compared.close()
    return said


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--ladder", default="")
    parser.add_argument("--quantization", choices=QUANTIZATIONS)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    texts = asked.ladder.split(",") if asked.ladder else []
    texts += [f"quantization={asked.quantization}"] if asked.quantization else []
    texts += ["compile"] if asked.compile else []
    try:
        rungs = [Rung.of(text) for text in texts]
    except ValueError as error:
        parser.error(f"--ladder: {error}")
    if asked.offload and rungs:
        parser.error("--offload: not with --ladder, --quantization or --compile")
    if any(rung.kind == "step_cache" for rung in rungs[:-1]):
        parser.error("--ladder: step_cache must be the last")
    if asked.offload:
        compare_offloads(asked)
    elif rungs:
        Ladder(asked).climb(rungs)
    else:
        compare(asked)


if __name__ == "__main__":
    main()
