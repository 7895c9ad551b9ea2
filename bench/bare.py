"""A pipeline of Diffusers by itself, to compare a server with."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from omnistage.bench.images import numbered

NOT_THE_PIPELINES = frozenset({"size", "seed", "n", "model", "output_format", "output_compression"})


def arguments_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request's fields as arguments of the pipeline's call."""
    made = {name: value for name, value in body.items() if name not in NOT_THE_PIPELINES}
    if "size" in body:
        made["width"], made["height"] = map(int, body["size"].split("x"))
    if "n" in body:
        made["num_images_per_prompt"] = body["n"]
    return made


def load_bare(folder: str, body: Mapping[str, object]) -> Callable[[int], float]:
    """The pipeline of a folder; the call makes one request's pictures and returns its seconds."""
    import torch
    from diffusers import DiffusionPipeline

    has_gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if has_gpu else torch.float32
    pipeline = DiffusionPipeline.from_pretrained(folder, dtype=dtype)
    pipeline.to("cuda" if has_gpu else "cpu")
    pipeline.set_progress_bar_config(disable=True)

    def make(number: int) -> float:
        generator = torch.Generator().manual_seed(number)
        start_s = time.perf_counter()
        pipeline(**arguments_of(numbered(body, number)), generator=generator)
        return time.perf_counter() - start_s

    return make
