"""Trains the decoder on, for sharp contours of what the encoder and the denoiser give it."""

import os
import random

import torch
from diffusers import QwenImagePipeline
from image.data import pool
from image.draw import POOL, Batch, Batches, Drawer, speed_up
from image.parts import SIDE, make_tokenizer
from image.steps import Steps
from image.vae import trained_coder
from loop import Training, arguments

BATCH = 64
RATE = 1e-3
EDGES = 1.0  # share of the loss that neighboring pixels' differences have, to the pixels' own 1
NOISE = 0.15  # on the encoder's latents, at most, in their spreads
LEVEL = 0.35  # noise level, at most, from which the denoiser's latents are predicted
LEARNED = 0.15  # losses below it have learned something
NAME = "sharpen"


def differences(made: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means of pictures' differences [b, 3, side, side], and of those of neighboring pixels."""
    apart = made - wanted
    edges = (apart.diff(dim=-1).abs().mean() + apart.diff(dim=-2).abs().mean()) / 2
    return apart.abs().mean(), edges


@torch.no_grad()
def as_served(given: Batch, drawer: Drawer) -> torch.Tensor:
    """Packed latents with errors: one half with noise, the other what the denoiser predicts."""
    exact = given.latents
    half = len(exact) // 2
    noise, share = torch.randn_like(exact), torch.rand(len(exact), 1, 1, device=exact.device)
    noisy = exact + NOISE * share * noise
    level = LEVEL * share[:half]
    between = torch.lerp(exact[:half], noise[:half], level)
    velocity = drawer(between, level[:, 0, 0], given.ids[:half], given.counts[:half])
    return torch.cat([between - level * velocity.float(), noisy[half:]])


def main() -> None:
    """Train, and write the autoencoder with its new decoder; needs a trained denoiser."""
    run = arguments(20_000)
    speed_up()
    drawings = pool(int(os.environ.get("POOL", POOL)), make_tokenizer(), run.device)
    coder = trained_coder(run)
    for part in (coder.vae.decoder, coder.vae.post_quant_conv):
        part.requires_grad_(True)
    drawer = Drawer()
    state = torch.load(run.out / "draw.pt", map_location="cpu", weights_only=True)
    drawer.load_state_dict(state["drawer"])
    drawer.to(run.device).requires_grad_(False)
    batches = Batches(drawings, coder, run.device)

    def losses(group: int) -> dict[str, torch.Tensor]:
        given = batches.batch(SIDE, run.size(BATCH), group)
        packed = as_served(given, drawer)
        unpacked = QwenImagePipeline._unpack_latents(packed, SIDE, SIDE, 8)
        difference, edges = differences(coder.pictures(unpacked[:, :, 0]), given.pictures)
        return {"loss": difference + EDGES * edges, "difference": difference, "edges": edges}

    steps = Steps(coder, RATE, 0.0, losses)
    training = Training(run, NAME, {"coder": coder}, [(steps.optimizer, RATE)])
    shares = [end - first for first, end, _ in drawings.groups]
    pick = random.Random(training.resumed_at())
    torch.manual_seed(training.resumed_at())
    for _ in training.steps():
        group = pick.choices(range(len(shares)), shares)[0]
        training.log(**steps(group, training.rate(RATE)))
        steps.check(LEARNED, training.path)


if __name__ == "__main__":
    main()
