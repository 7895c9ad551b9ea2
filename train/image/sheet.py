"""Held-out prompts drawn by the pipeline on the way, beside what was asked for."""

import random
from typing import Any

import numpy as np
import torch
from image.parts import CHANNELS, SIDE, make_tokenizer, pipeline
from image.render import contents, palette, render
from image.scenes import Drawing, drawing
from loop import Run
from PIL import Image

STEPS = 12
GUIDANCE = 2.0
ENOUGH = 0.97  # pixels of the colour that is asked for


def held_out(count: int) -> list[Drawing]:
    """The same for every call; no two alike."""
    pick = random.Random(77)
    found: dict[str, Drawing] = {}
    while len(found) < count:
        one = drawing(pick, held_out=True)
        found.setdefault(one.words, one)
    return list(found.values())


@torch.no_grad()
def show(run: Run, coder: Any, drawer: Any, step: int, count: int) -> None:
    """Write a sheet of wanted and drawn pictures, and print how many agree."""
    drawings = held_out(count)
    vae = coder.vae
    vae.register_to_config(latents_mean=coder.mean.tolist(), latents_std=coder.spread.tolist())
    made = pipeline(vae, drawer.encoder, drawer.transformer, make_tokenizer())
    dice = torch.Generator("cpu").manual_seed(5)
    latents = torch.randn(count, (SIDE // 16) ** 2, 4 * CHANNELS, generator=dice).to(run.device)
    images = []
    for start in range(0, count, 50):
        part = drawings[start : start + 50]
        images.append(
            made(
                [one.prompt for one in part],
                negative_prompt=[" "] * len(part),
                true_cfg_scale=GUIDANCE,
                height=SIDE,
                width=SIDE,
                num_inference_steps=STEPS,
                latents=latents[start : start + 50],
                output_type="pt",
            ).images.float()
        )
    drawn = 2 * torch.cat(images) - 1
    wanted = render(contents(drawings).to(run.device), SIDE, vary=0)
    same = (_colours(drawn) == _colours(wanted)).float().mean((1, 2))
    print(
        f"draw {step}: {100 * float((same > ENOUGH).float().mean()):.1f} % of {count} held-out "
        f"drawings agree, {100 * float(same.mean()):.2f} % of their pixels",
        flush=True,
    )
    rows = torch.stack([wanted, drawn], 1)[:48].cpu()
    sheet = rows.reshape(-1, 12, 3, SIDE, SIDE).permute(0, 3, 1, 4, 2)
    pixels = ((sheet.reshape(-1, 12 * SIDE, 3) + 1) * 127.5).round().clamp(0, 255)
    Image.fromarray(pixels.numpy().astype(np.uint8)).save(run.out / f"sheet-{step:06}.png")


def _colours(pictures: torch.Tensor) -> torch.Tensor:
    known = palette(pictures.device)[None, :, :, None, None]
    apart = (pictures[:, None] - known).square().sum(2)
    return apart.argmin(1)
