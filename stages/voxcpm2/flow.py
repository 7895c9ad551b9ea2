"""The flow that makes a patch of latents: a DiT of a few tokens, ten Euler steps, guidance.

Math: UnifiedCFM and VoxCPMLocDiTV2 of voxcpm. The first step has no velocity ("zero star"), so a
patch takes nine calls of the DiT, each with a guided and an unguided row.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from omnistage.stages.speech.code_sampling import uniform_noise
from omnistage.stages.voxcpm2.minicpm import LocalLayers
from omnistage.stages.voxcpm2.settings import LayersConfig

NUM_STEPS = 10
GUIDANCE = 2.0
SWAY = 1.0
NUM_STILL = max(1, int((NUM_STEPS + 1) * 0.04))  # leading steps without a velocity
NUM_CONDITIONS = 2  # rows of the two language models
EPSILON = 1e-8
TIME_SCALE = 1000


def normal_noise(seed: torch.Tensor, frame: torch.Tensor, size: int) -> torch.Tensor:
    """Float32 [B, size] from seeds and frames, both int64 [B]: the same whatever else runs."""
    radius, angle = uniform_noise(seed, frame, 2, size)
    return (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()


class TimeNetwork(nn.Module):
    """A moment of the flow as a row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(size, size)
        self.linear_2 = nn.Linear(size, size)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """From waves [n, size] to the same shape."""
        output: torch.Tensor = self.linear_2(functional.silu(self.linear_1(waves)))
        return output


class PatchDit(nn.Module):
    """The velocity of a patch, from two condition rows, the moment and the patch before."""

    def __init__(self, config: LayersConfig, patch_size: int, latent_size: int) -> None:
        super().__init__()
        size = config.hidden_size
        self._patch_size = patch_size
        self.in_proj = nn.Linear(latent_size, size)
        self.cond_proj = nn.Linear(latent_size, size)
        self.out_proj = nn.Linear(size, latent_size)
        self.time_mlp = TimeNetwork(size)
        self.delta_time_mlp = TimeNetwork(size)
        self.decoder = LocalLayers(config, NUM_CONDITIONS + 1 + 2 * patch_size)

    def moments(self, times: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        """The rows [n, hidden] of moments and of the steps behind them, both [n]."""
        size = self.in_proj.out_features
        return self.time_mlp(_waves(times, size)) + self.delta_time_mlp(_waves(deltas, size))

    def forward(
        self, patch: torch.Tensor, context: torch.Tensor, moment: torch.Tensor
    ) -> torch.Tensor:
        """The velocities [B, patch, latent] of patches.

        `context` [B, 2 + patch, hidden] and `moment` [hidden] are rows in the DiT's own width.
        """
        conditions, before = context[:, :NUM_CONDITIONS], context[:, NUM_CONDITIONS:]
        now = moment.expand(len(patch), 1, -1)
        hidden = self.decoder(torch.cat([conditions, now, before, self.in_proj(patch)], dim=1))
        output: torch.Tensor = self.out_proj(hidden[:, -self._patch_size :])
        return output


def _waves(times: torch.Tensor, size: int) -> torch.Tensor:
    half = size // 2
    steps = torch.arange(half, dtype=times.dtype, device=times.device)
    frequencies = torch.exp(steps * -(math.log(10_000) / (half - 1)))
    angles = TIME_SCALE * times[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def schedule(dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The moments of the steps and their lengths, which the reference adds up in its dtype."""
    line = torch.linspace(1, 0, NUM_STEPS + 1, dtype=dtype, device="cpu")
    line = line + SWAY * (torch.cos(torch.pi / 2 * line) - 1 + line)
    times, deltas = [line[0]], [line[0] - line[1]]
    for step in range(1, NUM_STEPS):
        times.append(times[-1] - deltas[-1])
        deltas.append(times[-1] - line[step + 1])
    return times, deltas


class PatchFlow(nn.Module):
    """Makes patches out of noise."""

    def __init__(self, estimator: PatchDit, is_mean: bool) -> None:
        """`is_mean`: the DiT reads the length of a step, too."""
        super().__init__()
        self.estimator = estimator
        self._is_mean = is_mean
        self._deltas: list[float] = []
        self._moments = torch.zeros(0)

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute what depends on the weights alone; again when they are others."""
        weight = self.estimator.in_proj.weight
        times, deltas = (torch.stack(one) for one in schedule(weight.dtype))
        self._deltas = deltas.tolist()
        heard = deltas if self._is_mean else torch.zeros_like(deltas)
        self._moments = self.estimator.moments(times.to(weight.device), heard.to(weight.device))

    def forward(
        self, conditions: torch.Tensor, before: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        """Patches [B, patch, latent] from rows [B, 2, hidden], the patches before, and noise."""
        if not self._deltas:
            self.prepare()
        batch = len(noise)
        past = self.estimator.cond_proj(before)
        guided = torch.cat([conditions, past], dim=1)
        unguided = torch.cat([torch.zeros_like(conditions), past], dim=1)
        context = torch.cat([guided, unguided])
        patch = noise
        for step in range(NUM_STILL, NUM_STEPS):
            both = self.estimator(torch.cat([patch, patch]), context, self._moments[step])
            patch = patch - self._deltas[step] * guide(both[:batch], both[batch:])
        return patch


def guide(guided: torch.Tensor, unguided: torch.Tensor) -> torch.Tensor:
    """Guidance whose unguided part is the projection on it: velocities [B, patch, latent]."""
    product = (guided * unguided).flatten(1).sum(1)
    norm = unguided.flatten(1).square().sum(1) + EPSILON
    base = unguided * (product / norm)[:, None, None]
    return base + GUIDANCE * (guided - base)
