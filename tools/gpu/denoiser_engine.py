"""`make denoiser-engine`: Qwen-Image's denoiser in an engine of vLLM's beside our own.

Two blocks of the real widths with random weights are called by the same unmodified pipeline: bare,
in our step batcher, and in vLLM's pooling runner, where each step of an image is a request
(`pooled_denoiser.py`). Latents must be the bare pipeline's within `--tolerance`, else the exit code
is 1. A line is a JSON object: `load`, the sides in tokens of the images that run at once;
`ms_per_step` until the last is whole; `forward_ms` of one forward; `beside_ms`, what of a step no
forward is; `shared`, forwards by how many images shared them; `first_ms`, a step of the first.
The command is the same on a CPU and on a GPU.
"""

import argparse
import asyncio
import copy
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers.utils import logging
from pooled_denoiser import CHANNELS, REAL, SMALL, make_denoiser, make_engine, predict

from omnistage.stages.device.devices import device_of
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher

Image = tuple[torch.Tensor, float]  # its latents, and when it was whole
Calls = Sequence[dict[str, Any]]


class Comparison:
    """The loads, the forwards of the one that runs, and the bare pipeline's latents."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.sizes = (asked.layers, *(SMALL if asked.small else REAL))
        self.dtype = getattr(torch, asked.dtype)
        self.device = device_of(None)
        side = asked.side
        self.loads = ((side,), (side,) * asked.at_once, (side, asked.large))
        self.forwards: list[tuple[float, int]] = []  # seconds, and how many shared it
        self.expected: dict[tuple[int, ...], list[torch.Tensor]] = {}  # by load

    def pipeline(self, denoiser: Any) -> Any:
        """One that is given its text as embeddings and gives its latents."""
        pipeline = make_tiny("qwen-image")
        pipeline.register_modules(transformer=denoiser)
        pipeline.set_progress_bar_config(disable=True)
        pipeline.vae.to(self.device)
        return pipeline

    def call(self, pipeline: Any, side: int, seed: int) -> dict[str, Any]:
        """The arguments for one image of `side` x `side` tokens."""
        drawn = torch.Generator().manual_seed(seed)
        text = torch.randn(1, self.asked.text, self.sizes[2], generator=drawn)
        pixels = side * 2 * pipeline.vae_scale_factor
        return {
            "prompt_embeds": text.to(self.device, self.dtype),
            "generator": drawn,
            "height": pixels,
            "width": pixels,
            "num_inference_steps": self.asked.steps,
            "true_cfg_scale": 1.0,
            "output_type": "latent",
        }

    def timed(self, denoiser: Any) -> Any:
        """The denoiser, which tells of its forwards."""
        forward = denoiser.forward

        @wraps(forward)
        def counted(*args: Any, **kwargs: Any) -> Any:
            began_at = time.perf_counter()
            result = forward(*args, **kwargs)
            if result[0].is_cuda:
                torch.cuda.synchronize()
            self.forwards.append((time.perf_counter() - began_at, len(result[0])))
            return result

        denoiser.forward = counted
        return denoiser

    def measure(self, engine: str, pipeline: Any, run: Callable[[Calls], list[Image]]) -> bool:
        """Print the median run of each load; whether the latents are the expected ones."""
        errors = []
        for load in self.loads:
            runs = []
            for _ in range(self.asked.repeats + 1):
                self.forwards.clear()
                calls = [self.call(pipeline, side, seed) for seed, side in enumerate(load)]
                images = run(calls)
                runs.append((max(end_s for _, end_s in images), images[0][1], [*self.forwards]))
            latents = [image.float().cpu() for image, _ in images]
            pairs = zip(latents, self.expected.setdefault(load, latents), strict=True)
            errors.append(max(float((one - other).abs().max()) for one, other in pairs))
            total_s, first_s, forwards = sorted(runs[1:])[len(runs[1:]) // 2]
            steps, times_s = self.asked.steps, [seconds for seconds, _ in forwards]
            say(
                engine=engine,
                load=load,
                ms_per_step=round(1e3 * total_s / steps, 2),
                forward_ms=round(1e3 * median(times_s), 2),
                beside_ms=round(1e3 * (total_s - sum(times_s)) / steps, 2),
                shared=dict(sorted(Counter(shared for _, shared in forwards).items())),
                first_ms=round(1e3 * first_s / steps, 2),
                max_error=errors[-1],
            )
        return bool(max(errors) <= self.asked.tolerance)

    def here(self) -> bool:
        """The bare pipeline, and ours."""
        denoiser = self.timed(make_denoiser(*self.sizes, self.dtype, self.device))
        pipeline = self.pipeline(denoiser)
        self.measure("bare", pipeline, partial(one_by_one, pipeline))
        once = {**self.call(pipeline, self.asked.side, 0), "num_inference_steps": 2}
        engine = StepBatcher(pipeline, once, {**once, "num_images_per_prompt": 2})
        try:
            return self.measure("ours", pipeline, partial(batched, engine))
        finally:
            engine.close()

    def there(self) -> bool:
        """The same pipeline, whose denoiser is in vLLM's engine."""
        loop, names = asyncio.new_event_loop(), map(str, itertools.count())
        threading.Thread(target=loop.run_forever, daemon=True).start()
        most = max(map(len, self.loads))
        is_gpu = self.device.type == "cuda"
        memory = {"gpu_memory_utilization": 0.5} if is_gpu else {"kv_cache_memory_bytes": 1 << 20}
        more = {"max_num_seqs": most, "max_num_batched_tokens": 8192 * most, **memory}
        with tempfile.TemporaryDirectory() as folder:

            async def begin() -> Any:
                return make_engine(Path(folder), self.sizes, dtype=self.asked.dtype, **more)

            engine = asyncio.run_coroutine_threadsafe(begin(), loop).result()

            def forward(**given: Any) -> tuple[torch.Tensor]:
                text, latents = given["encoder_hidden_states"][0], given["hidden_states"][0]
                step = predict(engine, next(names), text, latents, float(given["timestep"][0]))
                noise, seconds, shared = asyncio.run_coroutine_threadsafe(step, loop).result()
                self.forwards.append((seconds / shared, shared))  # each of them tells of it
                return (noise[None],)

            denoiser = make_denoiser(1, *SMALL, self.dtype, self.device)
            denoiser.forward = forward
            pipeline = self.pipeline(denoiser)
            try:
                return self.measure("vllm", pipeline, partial(in_threads, pipeline))
            finally:
                engine.shutdown()


def one_by_one(pipeline: Any, calls: Calls) -> list[Image]:
    """One image after another."""
    began_at = time.perf_counter()
    with torch.inference_mode():
        return [(pipeline(**call).images[0], time.perf_counter() - began_at) for call in calls]


def batched(engine: StepBatcher, calls: Calls) -> list[Image]:
    """All images in the step batcher."""
    began_at, ends_s = time.perf_counter(), [0.0] * len(calls)

    def ended(index: int, _: object) -> None:
        ends_s[index] = time.perf_counter() - began_at

    jobs = [engine.submit(**call) for call in calls]
    for index, job in enumerate(jobs):
        job.result.add_done_callback(partial(ended, index))
    return list(zip([job.result.result().images[0] for job in jobs], ends_s, strict=True))


def in_threads(pipeline: Any, calls: Calls) -> list[Image]:
    """All images, each in a thread with a scheduler of its own."""
    began_at = time.perf_counter()

    def image(call: dict[str, Any]) -> Image:
        own = copy.copy(pipeline)
        own.scheduler = copy.deepcopy(pipeline.scheduler)
        with torch.inference_mode():
            return own(**call).images[0], time.perf_counter() - began_at

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(image, calls))


def say(**told: Any) -> None:
    """Print one line, at once."""
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def main() -> None:
    """Run, print."""
    options = argparse.ArgumentParser()
    options.add_argument("--small", action="store_true", help="widths without weight")
    options.add_argument("--layers", type=int, default=2, help="blocks of the denoiser")
    options.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options.add_argument("--side", type=int, default=8, help="of an image, in tokens")
    options.add_argument("--large", type=int, default=16, help="of an image beside a small one")
    options.add_argument("--at-once", type=int, default=4)
    options.add_argument("--text", type=int, default=32, help="tokens of a text")
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--tolerance", type=float, default=1e-4)
    asked = options.parse_args()
    logging.set_verbosity_error()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    compared = Comparison(asked)
    if compared.device.type == "cpu":
        torch.set_num_threads(1)
    say(torch=torch.__version__, device=str(compared.device), load_average=os.getloadavg())
    there = {
        s: 4 * (s * s * CHANNELS + asked.text * compared.sizes[2])
        for s in (asked.side, asked.large)
    }
    say(
        bytes_of_a_step_in_float32={
            "there": there,
            "back": {s: 4 * s * s * CHANNELS for s in there},
        }
    )
    are_right = compared.here(), compared.there()
    sys.exit(0 if all(are_right) else 1)


if __name__ == "__main__":
    main()
