"""Trains the autoencoder by what it makes of its own latents; fits their mean and spread."""

from collections.abc import Iterator
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage
from image.data import pool
from image.parts import SIDE, freshly, make_tokenizer, new_vae
from image.render import render
from image.steps import Steps
from loop import Run, Training, arguments
from torch import nn

from omnistage.stages.diffusion.blocks.single_frames import flatten_single_frames

BATCH = 64
RATE = 1.5e-3
DIVERGENCE = 4e-3  # its share of the loss: how far latents are from white noise
ROUGH = 0.03  # noise on latents, in their spreads: what a denoiser leaves
QUIET = -6.0  # log of the noise's variance at first: else nothing is ever heard through it
FREE, FULL = 0.1, 0.4  # parts of the training before divergence counts, and when it does so fully
LEARNED = 0.55  # losses below it have learned something
NUM_FITTED = 64  # batches
DRAWINGS = 20_000
RESULT = "autoencoder.pt"


class Coder(nn.Module):
    """The autoencoder with its latents' mean and spread [channels]."""

    mean: torch.Tensor
    spread: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.vae = freshly(new_vae)
        flatten_single_frames(self.vae)
        channels = self.vae.config.z_dim
        nn.init.constant_(self.vae.quant_conv.bias[channels:], QUIET)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("spread", torch.ones(channels))

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses of pictures [b, 3, side, side]: mean difference, divergence from white noise."""
        found = self.vae.encode(pictures[:, :, None]).latent_dist
        noise = torch.randn_like(found.mean)
        noisy = (
            found.mean + noise * (found.std**2 + (ROUGH * found.mean.detach().std()) ** 2).sqrt()
        )
        difference = (self._decoded(noisy) - pictures).abs().mean()
        mean, logvar = found.mean.float(), found.logvar.float()
        return difference, 0.5 * (mean**2 + logvar.exp() - 1 - logvar).mean()

    def _decoded(self, latents: torch.Tensor) -> torch.Tensor:
        # Not .decode: it clamps, and a clamped value learns nothing.
        cache = [None] * self.vae._cached_conv_counts["decoder"]
        rows = self.vae.post_quant_conv(latents)
        made: torch.Tensor = self.vae.decoder(rows, feat_cache=cache, feat_idx=[0])
        return made[:, :, 0].float()

    def pictures(self, latents: torch.Tensor) -> torch.Tensor:
        """Of latents as the denoiser knows them; not clamped."""
        shape = (1, -1, 1, 1)
        scaled = latents * self.spread.view(shape) + self.mean.view(shape)
        return self._decoded(scaled[:, :, None])

    @torch.no_grad()
    def latents(self, pictures: torch.Tensor) -> torch.Tensor:
        """As the denoiser knows them: [b, channels, side / 8, side / 8], spread 1."""
        found = self.vae.encode(pictures[:, :, None]).latent_dist.mode()[:, :, 0]
        shape = (1, -1, 1, 1)
        scaled: torch.Tensor = (found - self.mean.view(shape)) / self.spread.view(shape)
        return scaled.float()

    def begin(self, checkpoint: Path) -> None:
        """Take the weights of a checkpoint, and its latents' mean and spread."""
        made = AutoencoderKLQwenImage.from_pretrained(checkpoint / "vae", torch_dtype=torch.float32)
        self.vae.load_state_dict(made.state_dict())
        self.mean.copy_(torch.tensor(made.config.latents_mean))
        self.spread.copy_(torch.tensor(made.config.latents_std))

    @torch.no_grad()
    def fit(self, batches: Iterator[torch.Tensor]) -> None:
        """Set mean and spread by pictures."""
        rows = []
        for pictures in batches:
            found = self.vae.encode(pictures[:, :, None]).latent_dist.mode()[:, :, 0]
            rows.append(found.float().transpose(0, 1).flatten(1))
        spread, mean = torch.std_mean(torch.cat(rows, 1), 1)
        self.mean.copy_(mean)
        self.spread.copy_(spread.clamp(min=0.1 * spread.max()))  # of what is not used


def trained_coder(run: Run) -> Coder:
    """The trained autoencoder, or that of the checkpoint which is trained on; frozen."""
    coder = Coder()
    if run.checkpoint is None:
        state = torch.load(run.out / RESULT, map_location="cpu", weights_only=True)
        coder.load_state_dict(state)
    else:
        coder.begin(run.checkpoint)
    return coder.to(run.device).requires_grad_(False)


def main() -> None:
    """Train, and write RESULT once it is whole."""
    run = arguments(20_000)
    if (run.out / RESULT).exists():
        return
    shown = pool(DRAWINGS, make_tokenizer(), run.device).contents
    coder = Coder().to(run.device)
    weight = torch.zeros((), device=run.device)

    def pictures() -> torch.Tensor:
        size = run.size(BATCH)
        return render(shown[torch.randint(0, len(shown.kinds), (size,), device=run.device)], SIDE)

    def losses(_: None) -> dict[str, torch.Tensor]:
        difference, divergence = coder(pictures())
        loss = difference + weight * divergence
        return {"loss": loss, "difference": difference, "divergence": divergence}

    steps = Steps(coder, RATE, 0.0, losses)
    training = Training(run, "vae", {"coder": coder}, [(steps.optimizer, RATE)])
    for _ in training.steps():
        weight.fill_(DIVERGENCE * min(1.0, max(0.0, (training.progress - FREE) / (FULL - FREE))))
        training.log(**steps(None, training.rate(RATE)))
        steps.check(LEARNED, training.path)
    coder.fit(pictures() for _ in range(NUM_FITTED))
    new = run.out / f"{RESULT}.new"
    torch.save(coder.state_dict(), new)
    new.replace(run.out / RESULT)
    training.path.unlink()


if __name__ == "__main__":
    main()
