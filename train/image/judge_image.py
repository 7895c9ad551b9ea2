"""Judges drawings of held-out prompts by their colours and contours: of a folder, or a server."""

import argparse
import base64
import io
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import torch
from diffusers import QwenImagePipeline
from image.parts import SIDE
from image.sheet import GUIDANCE, STEPS, held_out
from PIL import Image
from support.drawings import faults

Draw = Callable[[str, int], npt.NDArray[np.uint8]]
COLUMNS = 20


def by_folder(folder: Path, dtype: torch.dtype, guidance: float, side: int) -> Draw:
    """Diffusers' own pipeline, one prompt a call."""
    pipeline = QwenImagePipeline.from_pretrained(folder, torch_dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)

    def draw(prompt: str, seed: int) -> npt.NDArray[np.uint8]:
        image = pipeline(
            prompt,
            negative_prompt=" " if guidance > 1 else None,
            true_cfg_scale=guidance,
            num_inference_steps=STEPS,
            width=side,
            height=side,
            generator=torch.Generator().manual_seed(seed),
        ).images[0]
        return np.asarray(image.convert("RGB"))

    return draw


def by_server(url: str, guidance: float, side: int) -> Draw:
    """POST /v1/images/generations, one prompt a request."""
    client = httpx.Client(base_url=url, timeout=300)
    model = client.get("/v1/models").json()["data"][0]["id"]
    options = {"num_inference_steps": STEPS, "response_format": "b64_json"}
    if guidance > 1:
        options |= {"true_cfg_scale": guidance, "negative_prompt": " "}

    def draw(prompt: str, seed: int) -> npt.NDArray[np.uint8]:
        body = {"model": model, "prompt": prompt, "size": f"{side}x{side}", "seed": seed}
        reply = client.post("/v1/images/generations", json=body | options)
        reply.raise_for_status()
        file = base64.b64decode(reply.json()["data"][0]["b64_json"])
        return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))

    return draw


def main() -> None:
    """Print the share of right drawings and each fault; write a sheet of what was drawn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="a checkpoint; without it, the server's model")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--dtype", default="bfloat16", help="of a folder's weights")
    parser.add_argument("--guidance", type=float, default=GUIDANCE)
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--sheet", type=Path, help="a PNG of all drawings")
    given = parser.parse_args()
    if given.folder:
        dtype = getattr(torch, given.dtype)
        draw = by_folder(given.folder, dtype, given.guidance, given.side)
    else:
        draw = by_server(given.url, given.guidance, given.side)
    right, seconds, drawn = 0, [], []
    for seed, one in enumerate(held_out(given.count)):
        started = time.monotonic()
        drawn.append(draw(one.prompt, seed))
        seconds.append(time.monotonic() - started)
        wrong = faults(drawn[-1], one.prompt)
        right += not wrong
        if wrong:
            print(f"{seed}: {one.prompt!r}: {'; '.join(wrong)}", flush=True)
    print(
        f"{right} of {given.count} right ({100 * right / given.count:.1f} %), "
        f"{np.median(seconds):.2f} s a drawing",
        flush=True,
    )
    if given.sheet:
        drawn += [np.zeros_like(drawn[0])] * (-len(drawn) % COLUMNS)
        rows = [np.hstack(drawn[at : at + COLUMNS]) for at in range(0, len(drawn), COLUMNS)]
        Image.fromarray(np.vstack(rows)).save(given.sheet)


if __name__ == "__main__":
    main()
