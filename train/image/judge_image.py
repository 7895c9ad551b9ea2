"""Judges drawings of held-out prompts by their colours and contours: of a folder, or a server.

With --instead it judges what the drawings can be at best: exact pictures, or the autoencoder's.
"""

import argparse
import base64
import io
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import torch
from diffusers import AutoencoderKLQwenImage, QwenImagePipeline
from image.parts import SIDE
from image.render import contents, render
from image.scenes import Drawing
from image.sheet import GUIDANCE, STEPS, held_out
from PIL import Image
from support.oracles.drawings import faults

Pixels = npt.NDArray[np.uint8]
Draw = Callable[[Sequence[Drawing], Sequence[int]], list[Pixels]]
COLUMNS = 20


def by_folder(folder: Path, dtype: torch.dtype, guidance: float, side: int) -> Draw:
    """Diffusers' own pipeline, on a GPU if there is one."""
    pipeline = QwenImagePipeline.from_pretrained(folder, torch_dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)
    if torch.cuda.is_available():
        pipeline.to("cuda")

    def draw(asked: Sequence[Drawing], seeds: Sequence[int]) -> list[Pixels]:
        images = pipeline(
            [one.prompt for one in asked],
            negative_prompt=[" "] * len(asked) if guidance > 1 else None,
            true_cfg_scale=guidance,
            num_inference_steps=STEPS,
            width=side,
            height=side,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        ).images
        return [np.asarray(image.convert("RGB")) for image in images]

    return draw


def by_server(url: str, guidance: float, side: int) -> Draw:
    """POST /v1/images/generations, one prompt a request."""
    client = httpx.Client(base_url=url, timeout=300)
    model = client.get("/v1/models").json()["data"][0]["id"]
    options = {"num_inference_steps": STEPS, "response_format": "b64_json"}
    if guidance > 1:
        options |= {"true_cfg_scale": guidance, "negative_prompt": " "}

    def one_of(one: Drawing, seed: int) -> Pixels:
        body = {"model": model, "prompt": one.prompt, "size": f"{side}x{side}", "seed": seed}
        reply = client.post("/v1/images/generations", json=body | options)
        reply.raise_for_status()
        file = base64.b64decode(reply.json()["data"][0]["b64_json"])
        return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))

    def draw(asked: Sequence[Drawing], seeds: Sequence[int]) -> list[Pixels]:
        return [one_of(*each) for each in zip(asked, seeds, strict=True)]

    return draw


def exactly(side: int) -> Draw:
    """The pictures that are asked for."""

    def draw(asked: Sequence[Drawing], _: Sequence[int]) -> list[Pixels]:
        return _pixels(render(contents(asked), side, vary=0))

    return draw


def by_autoencoder(folder: Path, side: int) -> Draw:
    """The pictures that are asked for, as a checkpoint's autoencoder encodes and decodes them."""
    coder = AutoencoderKLQwenImage.from_pretrained(folder / "vae", torch_dtype=torch.float32)

    @torch.no_grad()
    def draw(asked: Sequence[Drawing], _: Sequence[int]) -> list[Pixels]:
        wanted = render(contents(asked), side, vary=0)[:, :, None]
        return _pixels(coder.decode(coder.encode(wanted).latent_dist.mode()).sample[:, :, 0])

    return draw


def _pixels(pictures: torch.Tensor) -> list[Pixels]:
    """Of pictures [n, 3, side, side], -1 to 1."""
    rows = ((pictures.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255)
    return list(rows.byte().numpy())


def main() -> None:
    """Print the share of right drawings and each fault; write a sheet of what was drawn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="a checkpoint; without it, the server's model")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=1, help="drawings a call")
    parser.add_argument("--dtype", default="bfloat16", help="of a folder's weights")
    parser.add_argument("--guidance", type=float, default=GUIDANCE)
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--sheet", type=Path, help="a PNG of all drawings")
    parser.add_argument("--instead", choices=("exact", "autoencoder"), help="of drawings")
    given = parser.parse_args()
    if given.instead == "autoencoder" and not given.folder:
        parser.error("--instead autoencoder needs the --folder of a checkpoint")
    if given.instead == "exact":
        draw = exactly(given.side)
    elif given.instead:
        draw = by_autoencoder(given.folder, given.side)
    elif given.folder:
        dtype = getattr(torch, given.dtype)
        draw = by_folder(given.folder, dtype, given.guidance, given.side)
    else:
        draw = by_server(given.url, given.guidance, given.side)
    asked: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    right = 0
    seconds: list[float] = []
    drawn: list[Pixels] = []
    drawings = held_out(given.count)
    for seed, one in enumerate(drawings):
        if seed == len(drawn):
            part = drawings[seed : seed + given.at_once]
            started = time.monotonic()
            drawn += draw(part, range(seed, seed + len(part)))
            seconds.append((time.monotonic() - started) / len(part))
        wrong = faults(drawn[seed], one.prompt)
        right += not wrong
        kinds = (f"shapes: {len(one.things)}", f"ground: {one.ground}")
        asked.update(kinds)
        failed.update(kinds if wrong else ())
        if wrong:
            print(f"{seed}: {one.prompt!r}: {'; '.join(wrong)}", flush=True)
    for kind, count in sorted(asked.items()):
        print(f"{kind}, {failed[kind]} of {count} wrong", flush=True)
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
