"""`make vocoder-engine`: Qwen3-Omni's vocoder in an engine of vLLM's beside our own.

vLLM's pooling runner takes each chunk of codec frames as a request, with as many frames before it
as `--contexts` says (`exact`: all that its samples depend on), and decodes them with our layers
(`tests/support/pooled_vocoder.py`). Our engine carries each stream's state and decodes each frame
once. Both get the same codes and begin anew `--runs` times, one after the other, each in processes
of its own. Each line is a JSON object; a figure of several runs is `[median, least, most]`:

- of the arithmetic: `context`, the frames decoded again with each chunk of 25, and `factor`, all
  frames decoded over those of the chunk;
- of the samples of one stream, vLLM's beside ours: `max_error`, of samples in -1..1, and
  `relative_rms`, which must be at most 1e-5 in float32 if the context is at least the exact one, or
  the exit code is 1;
- of each engine: `start_s` from the start of its process to the first samples, `rss_mib` and
  `pss_mib` of its processes together (what several map counts in each, or in parts), `gpu_mib`;
- of so many streams that bring a chunk at the same time: `ms` until the last one has its samples,
  and `overhead_ms`, what of that is not the decodes.

Without `--model` the tiny checkpoint is read; with `--real-size` the weights are dummy ones.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
import pynvml
import torch
from support.printing import numbers

from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.checkpoint import read_config
from omnistage.stages.vocoder.decoder import UNASKED, Decoded, Frames, Piece
from omnistage.stages.vocoder.engine import DecoderEngine, Limits
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.start import DecoderOptions

OURS, VLLM = "ours", "vllm"
FIRST_FRAMES, STEADY_FRAMES = 2, 25  # of a stream's chunks, as our graph files have them
EXACT = "exact"
TOLERANCE = 1e-5  # the angles of positions that begin anew with each request round otherwise
MIB = 1 << 20
PROCESS_FIGURES = ("start_s", "rss_mib", "pss_mib", "gpu_mib")

Samples = npt.NDArray[np.float32]
Figures = list[float]
"""Median, least, most."""


class Chunk(NamedTuple):
    """Frames of a stream."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What both engines are asked: chunks of `streams` at once, `repeats` times.

    `contexts`: frames that vLLM decodes again with a chunk of `STEADY_FRAMES`.
    """

    model: str
    dtype: str
    has_weights: bool
    streams: Sequence[int]
    contexts: Sequence[int]
    repeats: int

    @property
    def settings(self) -> dict[str, Any]:
        """The vocoder's in the checkpoint."""
        settings: dict[str, Any] = read_config(self.model)["code2wav_config"]
        return settings

    def frames(self, stream: int, count: int) -> Frames:
        """Codes int32 [count, codebooks], for each stream others."""
        drawn = np.random.default_rng(stream)
        shape = count, self.settings["num_quantizers"]
        return drawn.integers(0, self.settings["codebook_size"], shape, np.int32)

    @property
    def checked(self) -> list[Chunk]:
        """The chunks of a stream whose samples are compared: the first ones, and one that has the
        longest context before it."""
        ends = range(FIRST_FRAMES, FIRST_FRAMES + max(self.contexts) + 2 * STEADY_FRAMES, 25)
        chunks = [Chunk(0, FIRST_FRAMES), *(Chunk(end, end + STEADY_FRAMES) for end in ends)]
        return [*chunks[:3], *chunks[3:][-1:]]


class Case(NamedTuple):
    """What was timed: chunks of `frames`, with `context` more each, of so many streams at once."""

    engine: str
    streams: int
    frames: int
    context: int


class Time(NamedTuple):
    """Until the last of the streams had its samples, and what of that the decodes took."""

    total_s: float
    decodes_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine, from the start of its process to its end."""

    start_s: float
    rss_mib: float
    pss_mib: float
    gpu_mib: float
    times: dict[Case, list[Time]]
    samples: dict[int, list[Samples]]  # by context, of `Plan.checked`; ours by 0


# The arithmetic


def frames_before(settings: Mapping[str, Any]) -> int:
    """How many frames before a chunk its samples depend on.

    Each layer of the transformer sees its window; behind it the convolutions, of 7 steps, in the
    decoder's units 1, 3 and 9 apart, reach back at their own rates.
    """
    steps = 1
    frames = Fraction(settings["num_hidden_layers"] * (settings["sliding_window"] - 1))
    for factor in settings["upsampling_ratios"]:
        steps *= factor
        frames += Fraction(6, steps)
    frames += Fraction(6, steps)
    for factor in settings["upsample_rates"]:
        frames += Fraction(1, steps)
        steps *= factor
        frames += Fraction(6 * (1 + 3 + 9), steps)
    return math.ceil(frames + Fraction(6, steps))


def factor_of(context: int) -> float:
    """Frames that are decoded over those of the chunk."""
    return (context + STEADY_FRAMES) / STEADY_FRAMES


def figures(values: Sequence[float]) -> Figures:
    """Of several runs."""
    return [round(value, 3) for value in (median(values), min(values), max(values))]


def error_of(ours: Sequence[Samples], other: Sequence[Samples]) -> dict[str, float]:
    """How far the other's samples are from ours."""
    own = np.concatenate(ours)
    difference = np.concatenate(other) - own
    return {
        "max_error": float(np.abs(difference).max()),
        "relative_rms": float(np.sqrt(np.square(difference).sum() / np.square(own).sum())),
    }


class Own:
    """This process and those that it has started: their age and their memory."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._gpu_before = gpu_used()

    @property
    def age_s(self) -> float:
        """Since this process began."""
        return time.time() - self._process.create_time()

    @property
    def memory_mib(self) -> tuple[float, float, float]:
        """RSS and PSS of all processes, and what of the first GPU was taken since this one began.

        Nobody else may take any of the GPU meanwhile.
        """
        running = [self._process, *self._process.children(recursive=True)]
        taken = [process.memory_full_info() for process in running]
        rss, pss = sum(one.rss for one in taken), sum(one.pss for one in taken)
        return rss / MIB, pss / MIB, (gpu_used() - self._gpu_before) / MIB


def gpu_used() -> int:
    """Bytes of the first GPU that are taken; 0 where there is none."""
    if not torch.cuda.is_available():
        return 0
    pynvml.nvmlInit()
    used = int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    pynvml.nvmlShutdown()
    return used


# Ours


class TimedVocoder(StreamingVocoder):
    """Adds up how long its decodes take."""

    decodes_s = 0.0

    def decode(self, pieces: Sequence[Piece[Slot]]) -> Decoded:
        """As always, but that the device is waited for."""
        began_at = time.perf_counter()
        decoded = super().decode(pieces)
        if decoded.pcm.device.type == "cuda":
            torch.cuda.synchronize()
        self.decodes_s += time.perf_counter() - began_at
        return decoded


def run_ours(plan: Plan) -> Measured:
    """The engine of the stage code2wav, stepped as the stage does, in a process of its own."""
    own = Own()
    options = DecoderOptions(
        num_slots=max(plan.streams),
        dtype=plan.dtype,
        load_format="auto" if plan.has_weights else "dummy",
    )
    engine = TimedVocoder.engine(plan.model, "code2wav", options)
    engine.warm_up()
    start_s = own.age_s
    times = asyncio.run(time_ours(plan, engine))
    decoder = engine.decoder
    slot, samples = decoder.open(UNASKED), []
    frames = plan.frames(0, plan.checked[-1].end)
    starts = [0, *range(FIRST_FRAMES, len(frames), STEADY_FRAMES)]
    for start, end in zip(starts, [*starts[1:], len(frames)], strict=True):
        piece = Piece(slot, frames[start:end])
        pcm, heard, _ = decoder.decode([piece])
        if (start, end) in plan.checked:
            samples.append(pcm[0][heard[0]].cpu().numpy())
        decoder.advance(piece)
    return Measured(start_s, *own.memory_mib, times, {0: samples})


async def time_ours(plan: Plan, engine: DecoderEngine[Slot]) -> dict[Case, list[Time]]:
    """A first chunk and a later one of each stream, of all at once."""
    decoder = engine.decoder
    assert isinstance(decoder, TimedVocoder)
    loop = asyncio.get_running_loop()
    times: dict[Case, list[Time]] = defaultdict(list)
    for count in plan.streams:
        for number in range(plan.repeats + 1):
            names = [str(stream) for stream in range(count)]
            for name in names:
                engine.open(name)
            start = 0
            for length in (FIRST_FRAMES, STEADY_FRAMES):
                chunks = [plan.frames(stream, start + length)[start:] for stream in range(count)]
                start += length
                decoder.decodes_s = 0.0
                began_at = time.perf_counter()
                for name, frames in zip(names, chunks, strict=True):
                    engine.push(name, frames, last=False)
                num_answered = 0
                while num_answered < count:
                    num_answered += len(await loop.run_in_executor(None, engine.step))
                took = Time(time.perf_counter() - began_at, decoder.decodes_s)
                if number:  # the first time is for what is set up at first use
                    times[Case(OURS, count, length, 0)].append(took)
            for name in names:
                engine.cancel(name)
            engine.step()  # which frees their slots
    return dict(times)


# vLLM's


def run_vllm(plan: Plan) -> Measured:
    """vLLM's engine, in a process of its own below one of its own."""
    return asyncio.run(time_vllm(plan, Own()))


async def time_vllm(plan: Plan, own: Own) -> Measured:
    """The same chunks, each with the codes before it."""
    from support.pooled_vocoder import decode, make_engine
    from vllm.platforms import current_platform

    from omnistage.stages.vllm.engine.engine import START_METHOD

    codebooks, longest = plan.settings["num_quantizers"], max(plan.contexts) + STEADY_FRAMES
    has_gpu = current_platform.is_cuda()
    if has_gpu:  # what was imported here may have asked for CUDA, which a forked engine cannot use
        os.environ[START_METHOD] = "spawn"
    more = {
        "dtype": plan.dtype,
        "load_format": "auto" if plan.has_weights else "dummy",
        "max_num_seqs": max(plan.streams),
        "max_num_batched_tokens": max(Limits().batch_frames, longest) * codebooks,
        **({"gpu_memory_utilization": 0.5} if has_gpu else {"kv_cache_memory_bytes": MIB}),
    }
    engine = make_engine(plan.model, codebooks, longest, more)
    count = iter(range(1 << 30))

    async def chunk(frames: Frames, context: int) -> tuple[Samples, float]:
        samples, share_s = await decode(engine, str(next(count)), frames.ravel().tolist(), context)
        return samples.numpy(), share_s

    try:
        await chunk(plan.frames(0, 1), 0)
        start_s = own.age_s
        times = {case: await timed(plan, case, chunk) for case in cases_of_vllm(plan)}
        frames = plan.frames(0, plan.checked[-1].end)
        samples = {
            context: [
                (await chunk(frames[max(0, start - context) : end], min(context, start)))[0]
                for start, end in plan.checked
            ]
            for context in plan.contexts
        }
        return Measured(start_s, *own.memory_mib, times, samples)
    finally:
        engine.shutdown()


def cases_of_vllm(plan: Plan) -> Iterator[Case]:
    """A first chunk, which nothing is before, and a later one with each context."""
    for count in plan.streams:
        yield Case(VLLM, count, FIRST_FRAMES, 0)
        for context in plan.contexts:
            yield Case(VLLM, count, STEADY_FRAMES, context)


async def timed(
    plan: Plan, case: Case, chunk: Callable[[Frames, int], Awaitable[tuple[Samples, float]]]
) -> list[Time]:
    """All streams' chunks at once."""
    chunks = [plan.frames(stream, case.context + case.frames) for stream in range(case.streams)]
    times = []
    for _ in range(plan.repeats + 1):
        began_at = time.perf_counter()
        answers = await asyncio.gather(*(chunk(frames, case.context) for frames in chunks))
        total_s = time.perf_counter() - began_at
        times.append(Time(total_s, sum(share_s for _, share_s in answers)))
    return times[1:]  # the first time is for what is set up at first use


# Both


def run(run_one: Callable[[Plan], Measured], plan: Plan) -> Measured:
    """In a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(run_one, plan).result()


def say(**told: Any) -> None:
    """One line, at once."""
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def compare(plan: Plan, num_runs: int) -> bool:
    """Print all; whether vLLM's samples are ours where they must be."""
    exact = frames_before(plan.settings)
    for context in plan.contexts:
        say(context=context, is_exact=context >= exact, factor=factor_of(context))
    measured: dict[str, list[Measured]] = {OURS: [], VLLM: []}
    for _ in range(num_runs):
        measured[OURS].append(run(run_ours, plan))
        measured[VLLM].append(run(run_vllm, plan))
    is_right = True
    for context in plan.contexts:
        error = error_of(measured[OURS][0].samples[0], measured[VLLM][0].samples[context])
        say(context=context, **error)
        must_equal = context >= exact and plan.dtype == "float32"
        is_right &= not must_equal or error["relative_rms"] <= TOLERANCE
    for name, runs in measured.items():
        of_all = {key: figures([getattr(one, key) for one in runs]) for key in PROCESS_FIGURES}
        say(engine=name, **of_all)
    for case in [*measured[OURS][0].times, *measured[VLLM][0].times]:
        medians = [median_of(one.times[case]) for one in measured[case.engine]]
        ms = figures([1e3 * one.total_s for one in medians])
        overhead_ms = figures([1e3 * (one.total_s - one.decodes_s) for one in medians])
        say(**case._asdict(), ms=ms, overhead_ms=overhead_ms)
    return is_right


def median_of(times: Sequence[Time]) -> Time:
    """The one in the middle, by its whole."""
    return sorted(times)[len(times) // 2]


def contexts_of(text: str, exact: int) -> list[int]:
    """Frames, each once; raises ValueError for a negative one."""
    found = [exact if one == EXACT else int(one) for one in text.split(",")]
    if min(found) < 0:
        raise ValueError(f"{text}: a context is a number of frames, or {EXACT}")
    return sorted(set(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser()
    options.add_argument("--model", help="a folder or a name; its weights are read")
    options.add_argument("--real-size", action="store_true", help="with dummy weights")
    options.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options.add_argument("--streams", type=numbers, default=[1, 8, 32], help="at once")
    options.add_argument("--contexts", default=f"25,{EXACT}", help="frames decoded again")
    options.add_argument("--repeats", type=int, default=5, help="of each chunk in a run")
    options.add_argument("--runs", type=int, default=3, help="starts of each engine")
    return options


def main() -> None:
    """Write the model, run, print."""
    asked = parser().parse_args()
    if asked.model is not None and asked.real_size:
        raise SystemExit("--model has its own size: not with --real-size")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not torch.cuda.is_available():
        graph = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", "tiny")
        for name, value in graph.stages["code2wav"].environment.items():
            os.environ.setdefault(name, str(value))
    with tempfile.TemporaryDirectory() as name:
        if asked.real_size:
            write_real_size_folder(Path(name))
        elif asked.model is None:
            write_tiny_checkpoint(Path(name), 0)
        model = asked.model or name
        exact = frames_before(read_config(model)["code2wav_config"])
        plan = Plan(
            model,
            asked.dtype,
            not asked.real_size,
            asked.streams,
            contexts_of(asked.contexts, exact),
            asked.repeats,
        )
        sys.exit(0 if compare(plan, asked.runs) else 1)


if __name__ == "__main__":
    main()
