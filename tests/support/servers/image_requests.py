"""Image requests over HTTP, and what the bare pipeline makes of the same ones."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import torch
import yaml
from diffusers import DiffusionPipeline
from support.media.pictures import pixels_of
from support.servers.server import TinyServer, running_server

from omnistage.stage_configs.pick import GRAPHS

SMALL = {"height": 64, "width": 64}
STEPS = 3


@contextlib.contextmanager
def picture_server(
    graph: str,
    model: Path,
    folder: Path,
    *options: str,
    deadlines: Mapping[str, float] | None = None,
    **engine: Any,
) -> Iterator[TinyServer]:
    """Serve a pipeline by a graph of ours, but for the size of its warm-up; logs go to `folder`.

    `options` of the command line, `deadlines` of the graph, `engine` arguments of the stage.
    """
    document = yaml.safe_load((GRAPHS / graph).read_text())
    document["deadlines"] |= deadlines or {}
    document["stages"]["dit"]["engine"] = {"warm_up": SMALL, **engine}
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(document))
    with running_server(str(path), folder / "log", "--model", str(model), *options) as server:
        yield server


def bare_pipeline(folder: Path) -> Any:
    """The pipeline of a folder, in this process."""
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def expected(bare: Any, prompt: str | list[str], seed: int, **more: Any) -> npt.NDArray[np.uint8]:
    """Its pictures [n, height, width, 3]."""
    generator = torch.Generator().manual_seed(seed)
    arguments = {**SMALL, "num_inference_steps": STEPS, "output_type": "np", **more}
    with torch.inference_mode():
        made = bare(prompt=prompt, generator=generator, **arguments).images
    pictures: npt.NDArray[np.uint8] = (made * 255).round().astype(np.uint8)
    return pictures


async def ask(
    server: TinyServer, prompt: str | list[str], seed: int, **more: Any
) -> httpx.Response:
    """One request; as small as those of `expected`."""
    body = {"prompt": prompt, "size": "64x64", "num_inference_steps": STEPS, "seed": seed, **more}
    async with httpx.AsyncClient(timeout=600) as client:
        return await client.post(f"{server.url}/v1/images/generations", json=body)


def pictures_of(answer: httpx.Response) -> list[npt.NDArray[np.uint8]]:
    """All of a good answer."""
    assert answer.status_code == 200, answer.text
    return [pixels_of(one["b64_json"]) for one in answer.json()["data"]]


def is_same(actual: npt.NDArray[np.uint8], wanted: npt.NDArray[np.uint8]) -> bool:
    """But for a rounding to the next of 256 levels."""
    return bool(np.abs(actual.astype(int) - wanted.astype(int)).max() <= 1)
