"""Writes the trained parts as a checkpoint in Qwen-Image's published layout, in bfloat16."""

import argparse
from pathlib import Path
from typing import Any

import torch
from image.draw import Drawer
from image.parts import SIDE, freshly, make_tokenizer, new_vae, pipeline
from image.sharpen import NAME
from image.sheet import GUIDANCE, STEPS
from image.vae import RESULT, Coder
from world import COLOURS

CARD = f"""---
license: apache-2.0
library_name: diffusers
pipeline_tag: text-to-image
---
# small-image

A toy in Qwen-Image's published layout, made so that one can see whether a server of pictures works.
It is not Qwen-Image.

It draws one to three shapes (circle, square, triangle, star) in eight colours
({", ".join(COLOURS)}) on a plain ground of one of them,
as prompts in English ask: "a red circle on blue", "Draw a green square to the left of a yellow
star.", "two white triangles on black", "a blue star at the top right and a red square at the bottom
on a yellow background", "a small orange circle". Without a ground it takes white. It cannot draw
anything else, knows no other words, and makes pictures of {SIDE} x {SIDE} pixels; {2 * SIDE} were a
small part of its training.

- Parts: `QwenImageTransformer2DModel` of 5 layers by 160, `AutoencoderKLQwenImage` of 8 channels, a
  Qwen2.5-VL text encoder of 2 layers by 128; 6.8 million parameters in bfloat16.
- Sampling: {STEPS} steps, `true_cfg_scale` {GUIDANCE:g} with `negative_prompt` " ".
- Data: synthetic, drawn by the training itself. One twelfth of all drawings, by a hash of what they
  show, was never trained.
- Licence: Apache-2.0.

        pipeline = QwenImagePipeline.from_pretrained(FOLDER, torch_dtype=torch.bfloat16)
        options = dict(true_cfg_scale={GUIDANCE:g}, num_inference_steps={STEPS}, width={SIDE})
        pipeline("a red circle on blue", negative_prompt=" ", height={SIDE}, **options).images[0]
"""


def trained(out: Path, checkpoint: Path | None) -> Any:
    """The pipeline of a training's states, in float32; of a checkpoint, what has no state."""
    coder = Coder()
    sharpened = out / f"{NAME}.pt"
    if sharpened.exists():
        state = torch.load(sharpened, map_location="cpu", weights_only=True)
        coder.load_state_dict(state["coder"])
    elif checkpoint is None:
        coder.load_state_dict(torch.load(out / RESULT, map_location="cpu", weights_only=True))
    else:
        coder.begin(checkpoint)
    vae = freshly(new_vae)
    vae.load_state_dict(coder.vae.state_dict())
    vae.register_to_config(latents_mean=coder.mean.tolist(), latents_std=coder.spread.tolist())
    drawer = Drawer()
    state = torch.load(out / "draw.pt", map_location="cpu", weights_only=True)
    drawer.load_state_dict(state["drawer"])
    return pipeline(vae, drawer.encoder, drawer.transformer, make_tokenizer())


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(".cache/small/out"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, help="the one that was trained on")
    given = parser.parse_args()
    trained(given.out, given.checkpoint).to(torch.bfloat16).save_pretrained(given.folder)
    (given.folder / "README.md").write_text(CARD, encoding="utf-8")


if __name__ == "__main__":
    main()
