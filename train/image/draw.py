"""Trains the denoiser with its text encoder: flow matching, conditioned as the pipeline does it."""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from diffusers.models.transformers import transformer_qwenimage
from image.data import Pool, pool
from image.parts import (
    NUM_DROPPED,
    SIDE,
    freshly,
    make_tokenizer,
    new_text_encoder,
    new_transformer,
)
from image.render import render
from image.sheet import show
from image.steps import Steps
from image.vae import Coder, trained_coder
from loop import Training, arguments
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

BATCH = 128  # pictures
REPEATS = 4  # noise levels of each
RATE = 1e-3
POOL = 400_000
NO_PROMPT = 0.1
VARY = 0.3  # how far pictures of one prompt differ: as far as a denoiser cannot tell, it blurs
SHIFT = 1.63  # of noise levels, as the scheduler's for 128 pixels: exp(0.49)
SIDES = {SIDE: 0.92, 2 * SIDE: 0.08}
SHEET_EVERY_S = 120.0
LEARNED = 1.2  # losses below it have learned something; 2 is nothing
WARM_AGAIN = 200  # steps: the optimizer's state is not saved


class Drawer(nn.Module):
    """Text encoder and denoiser; a denoiser that begins by changing nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = freshly(new_text_encoder, make_tokenizer())
        self.transformer = freshly(new_transformer)
        made = self.transformer
        still = [block.img_mod[1] for block in made.transformer_blocks]
        still += [block.txt_mod[1] for block in made.transformer_blocks]
        for layer in (*still, made.norm_out.linear, made.proj_out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def begin(self, checkpoint: Path) -> None:
        """Take the weights of a checkpoint."""
        kept = {"torch_dtype": torch.float32}
        made = QwenImageTransformer2DModel.from_pretrained(checkpoint / "transformer", **kept)
        self.transformer.load_state_dict(made.state_dict())
        text = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            checkpoint / "text_encoder", dtype=torch.float32
        )
        self.encoder.load_state_dict(text.state_dict())

    def forward(
        self,
        latents: torch.Tensor,
        sigmas: torch.Tensor,
        ids: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        """Velocities [n * b, patches, 4 * channels].

        Packed latents of squares, n times those of b texts, with noise of levels `sigmas` [n * b];
        ids [b, tokens] of whole texts, of which `counts` [b] are no padding.
        """
        model = self.encoder.model.language_model
        table = model.embed_tokens.weight  # by a product: its gradient needs no sorting
        which = ids[..., None] == torch.arange(len(table), device=ids.device)
        found = model(inputs_embeds=which.to(table.dtype) @ table, use_cache=False)
        rows = found.last_hidden_state
        places = torch.arange(NUM_DROPPED, ids.shape[1], device=ids.device)
        mask = places < counts[:, None]
        rows = rows[:, NUM_DROPPED:] * mask[..., None]
        side, times = round(latents.shape[1] ** 0.5), len(latents) // len(ids)
        made: torch.Tensor = self.transformer(
            hidden_states=latents,
            encoder_hidden_states=rows.repeat(times, 1, 1),
            encoder_hidden_states_mask=mask.repeat(times, 1),
            timestep=sigmas,
            img_shapes=[[(1, side, side)]],
            return_dict=False,
        )[0]
        return made


def speed_up() -> None:
    """Let Diffusers' denoiser find a text's length without a copy that waits for the device."""
    transformer_qwenimage.compute_text_seq_len_from_mask = lambda rows, mask: (
        rows.shape[1],
        None,
        None if mask is None else mask.bool(),
    )


@dataclass(frozen=True)
class Batch:
    """Pictures [b, 3, side, side], their packed latents [b, patches, 4 * channels], their texts."""

    pictures: torch.Tensor
    latents: torch.Tensor
    ids: torch.Tensor
    counts: torch.Tensor


class Batches:
    """Pictures and texts on the device, drawn at random there."""

    def __init__(self, drawings: Pool, coder: Coder, device: torch.device) -> None:
        self._drawings = drawings
        self._coder = coder
        self._device = device

    def batch(self, side: int, size: int, group: int) -> Batch:
        """Pictures of a side, with texts of a length."""
        drawings = self._drawings
        first, end, length = drawings.groups[group]
        rows = torch.randint(first, end, (size,), device=self._device)
        pictures = render(drawings.contents[rows], side, VARY)
        latents = self._coder.latents(pictures)
        packed = QwenImagePipeline._pack_latents(latents.contiguous(), size, *latents.shape[1:])
        ids = drawings.ids[rows, : NUM_DROPPED + length]
        return Batch(pictures, packed, ids.long(), drawings.counts[rows])

    def loss(self, drawer: nn.Module, side: int, size: int, group: int) -> torch.Tensor:
        """Mean squared error of velocities, of pictures of a side and texts of a length."""
        device, given = self._device, self.batch(side, size, group)
        which = torch.randint(0, 2, (size,), device=device)
        is_dropped = torch.rand(size, device=device) < NO_PROMPT
        no_ids, no_counts = self._drawings.nothing
        no_ids = no_ids[which, : given.ids.shape[1]].long()
        ids = torch.where(is_dropped[:, None], no_ids, given.ids)
        counts = torch.where(is_dropped, no_counts[which], given.counts)
        packed = given.latents.repeat(REPEATS, 1, 1)
        noise = torch.randn_like(packed)
        sigmas = torch.arange(len(packed), device=device) / len(packed)  # spread over each picture
        sigmas = (sigmas + torch.rand(len(packed), device=device) / REPEATS) % 1
        sigmas = SHIFT * sigmas / (1 + (SHIFT - 1) * sigmas)
        is_rough = torch.rand_like(sigmas) < 0.5  # as a model in bfloat16 is given it
        sigmas = torch.where(is_rough, sigmas.bfloat16().float(), sigmas)
        noisy = torch.lerp(packed, noise, sigmas[:, None, None])
        found = drawer(noisy, sigmas, ids, counts)
        error: torch.Tensor = ((found.float() - (noise - packed)) ** 2).mean()
        return error


def main() -> None:
    """Train, and write draw.pt; sample sheets on the way."""
    run = arguments(200_000)
    speed_up()
    count = int(os.environ.get("POOL", POOL))
    started = time.monotonic()
    drawings = pool(count, make_tokenizer(), run.device)
    print(f"{len(drawings.counts)} drawings in {time.monotonic() - started:.0f} s", flush=True)
    coder = trained_coder(run)
    drawer = Drawer()
    if run.checkpoint is not None:
        drawer.begin(run.checkpoint)
    drawer.to(run.device)
    batches = Batches(drawings, coder, run.device)

    def losses(kind: tuple[int, int]) -> dict[str, torch.Tensor]:
        side, group = kind
        size = run.size(BATCH * SIDE * SIDE // side**2)
        with run.autocast():
            return {"loss": batches.loss(drawer, side, size, group)}

    steps = Steps(drawer, RATE, 0.01, losses)
    training = Training(run, "draw", {"drawer": drawer}, [(steps.optimizer, RATE)])
    shares = [end - first for first, end, _ in drawings.groups]
    pick = random.Random(0)
    shown = 0.0
    begun: int | None = None
    for step in training.steps():
        if begun is None:
            begun, shown = step, training.spent
            torch.manual_seed(step)
            pick = random.Random(step)
        side = pick.choices(list(SIDES), list(SIDES.values()))[0]
        group = pick.choices(range(len(shares)), shares)[0]
        rate = training.rate(RATE) * min(1.0, (step - begun + 1) / WARM_AGAIN)
        training.log(**steps((side, group), rate))
        steps.check(LEARNED, training.path)
        if training.spent - shown > SHEET_EVERY_S:
            shown = training.spent
            show(run, coder, drawer, training.step, 48)
    show(run, coder, drawer, training.step, 200)


if __name__ == "__main__":
    main()
