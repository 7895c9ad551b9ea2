"""BAGEL's denoiser: the flow of latents, each row over the keys and values of its context."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from diffusers import ModelMixin
from torch import Tensor, nn

from omnistage.stages.bagel.cells import MAX_PERIOD, CellEmbedding
from omnistage.stages.bagel.mixture import MixtureLayer, Rotary, attention, run_layers
from omnistage.stages.bagel.settings import BagelSettings

TIME_SIZE = 256


@dataclass(frozen=True)  # with a __dict__: the engine compares rows by their attributes
class FlowRow:
    """An image at one time, under one context.

    `latents`: float32 [n, size of a part]; `cells`: int64 [n], their places. `context`: keys and
    values [layers, 2, tokens, heads, size], after rotation; none of them is changed. `position`:
    int64 [1], the next one of the context.
    """

    latents: Tensor
    cells: Tensor
    context: Tensor
    position: Tensor


class BagelTransformer(ModelMixin):
    """The language model's layers, and what makes tokens of latents and velocities of tokens."""

    def __init__(self, settings: BagelSettings) -> None:
        super().__init__()
        self.settings = settings
        config = settings.text
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(MixtureLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_moe_gen = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config, settings.rope_theta)
        self.latents = LatentTokens(settings)
        self.llm2vae = nn.Linear(config.hidden_size, settings.part_size)
        self.register_buffer("marks", torch.tensor(settings.marks), persistent=False)

    def forward(self, rows: list[FlowRow], timestep: Tensor) -> list[Tensor]:
        """Return the velocity of each row, float32 and of its latents' shape.

        `timestep`: float32 [rows], from 1 (noise) to 0. Latents, their start and their end see each
        other and the row's whole context, all at one position. Start and end are read, not drawn.
        """
        lengths = [len(row.latents) for row in rows]
        marks = self.embed_tokens(self.marks).repeat(len(rows), 1)
        times = timestep.repeat_interleave(torch.tensor(lengths, device=timestep.device))
        drawn = self.latents(
            torch.cat([row.latents for row in rows]),
            torch.cat([row.cells for row in rows]),
            times,
        )
        places = torch.cat([row.position for row in rows])
        ends = places.repeat_interleave(2)
        inner = places.repeat_interleave(torch.tensor(lengths, device=places.device))
        rotation = self.rotary(torch.cat([ends, inner]))
        attend = partial(_attend, rows, lengths)
        _, drawn = run_layers(self.layers, marks, drawn, rotation, attend)
        velocities = self.llm2vae(self.norm_moe_gen(drawn)).float()
        return list(velocities.split(lengths))


def _attend(
    rows: list[FlowRow],
    lengths: list[int],
    number: int,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Return what tokens of rows attend to: first the marks of all rows, then their latents."""
    num_marks = 2 * len(rows)
    sizes = [2] * len(rows), lengths
    parts = [
        [*zip(one[:num_marks].split(sizes[0]), one[num_marks:].split(sizes[1]), strict=True)]
        for one in (queries, keys, values)
    ]
    marks, latents = [], []
    for row, *own in zip(rows, *parts, strict=True):
        asking, key, value = map(torch.cat, own)
        before = row.context[number]
        made = attention(
            asking[None], torch.cat([before[0], key])[None], torch.cat([before[1], value])[None]
        )[0].flatten(1)
        marks.append(made[:2])
        latents.append(made[2:])
    return torch.cat(marks + latents)


class LatentTokens(nn.Module):
    """Makes tokens of an image's latents, their times and their places."""

    def __init__(self, settings: BagelSettings) -> None:
        super().__init__()
        size = settings.text.hidden_size
        self.vae2llm = nn.Linear(settings.part_size, size)
        layers = nn.Linear(TIME_SIZE, size), nn.SiLU(), nn.Linear(size, size)
        self.time_embedder = nn.ModuleDict({"mlp": nn.Sequential(*layers)})
        self.latent_pos_embed = CellEmbedding(settings.latent_side, size)

    def forward(self, latents: Tensor, cells: Tensor, times: Tensor) -> Tensor:
        """Return tokens [..., hidden_size] of latents [..., part size], cells and times [...]."""
        dtype = self.vae2llm.weight.dtype
        times = self.time_embedder["mlp"](_time_waves(times).to(dtype))
        made: Tensor = self.vae2llm(latents.to(dtype)) + times
        return made + self.latent_pos_embed(cells).to(dtype)


def _time_waves(times: Tensor) -> Tensor:
    """Return float32 [..., TIME_SIZE] of times: cosines, then sines."""
    half = TIME_SIZE // 2
    steps = torch.arange(half, dtype=torch.float32, device=times.device)
    angles = times[..., None].float() * torch.exp(-math.log(MAX_PERIOD) * steps / half)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
