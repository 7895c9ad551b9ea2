"""OmniGen2's denoiser: a Lumina 2 that sees a text, images to refer to and the image that it makes.

Math: the technical report (arXiv 2506.18871) and the published configuration and weights. The
blocks are Diffusers' of Lumina 2. The tokens of all stand behind each other; what is padding is
masked, so that nothing need be moved together.
"""

from collections.abc import Sequence

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.loaders import PeftAdapterMixin
from diffusers.models.embeddings import Timesteps
from diffusers.models.normalization import LuminaLayerNormContinuous
from diffusers.models.transformers.transformer_lumina2 import (
    Lumina2CombinedTimestepCaptionEmbedding,
    Lumina2TransformerBlock,
)
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from omnistage.stages.lumina2.positions import (
    MAX_REFERENCES,
    Size,
    after,
    image_positions,
    rotations,
    text_positions,
)

TIME_WIDTH = 256


class OmniGen2Transformer2DModel(ModelMixin, ConfigMixin, PeftAdapterMixin):
    """Predicts the velocity of latents."""

    _repeated_blocks = ("Lumina2TransformerBlock",)
    _no_split_modules = ("Lumina2TransformerBlock",)

    @register_to_config
    def __init__(
        self,
        patch_size: int = 2,
        in_channels: int = 16,
        out_channels: int | None = None,
        hidden_size: int = 2304,
        num_layers: int = 26,
        num_refiner_layers: int = 2,
        num_attention_heads: int = 24,
        num_kv_heads: int = 8,
        multiple_of: int = 256,
        ffn_dim_multiplier: float | None = None,
        norm_eps: float = 1e-5,
        axes_dim_rope: tuple[int, int, int] = (32, 32, 32),
        axes_lens: tuple[int, int, int] = (300, 512, 512),
        text_feat_dim: int = 1024,
        timestep_scale: float = 1.0,
    ) -> None:
        super().__init__()
        if hidden_size // num_attention_heads != sum(axes_dim_rope):
            raise ValueError(
                f"axes_dim_rope: {axes_dim_rope} are {sum(axes_dim_rope)} together; a head has "
                f"{hidden_size // num_attention_heads}"
            )
        patch = patch_size**2
        self.x_embedder = nn.Linear(patch * in_channels, hidden_size)
        self.ref_image_patch_embedder = nn.Linear(patch * in_channels, hidden_size)
        self.time_caption_embed = Lumina2CombinedTimestepCaptionEmbedding(
            hidden_size, text_feat_dim, TIME_WIDTH, norm_eps
        )
        self.time_caption_embed.time_proj = Timesteps(
            TIME_WIDTH, flip_sin_to_cos=True, downscale_freq_shift=0.0, scale=timestep_scale
        )

        def blocks(number: int, modulation: bool = True) -> nn.ModuleList:
            sizes = (hidden_size, num_attention_heads, num_kv_heads, multiple_of)
            return nn.ModuleList(
                Lumina2TransformerBlock(*sizes, ffn_dim_multiplier, norm_eps, modulation)
                for _ in range(number)
            )

        self.noise_refiner = blocks(num_refiner_layers)
        self.ref_image_refiner = blocks(num_refiner_layers)
        self.context_refiner = blocks(num_refiner_layers, modulation=False)
        self.layers = blocks(num_layers)
        self.norm_out = LuminaLayerNormContinuous(
            hidden_size,
            min(hidden_size, 1024),
            elementwise_affine=False,
            eps=1e-6,
            out_dim=patch * (out_channels or in_channels),
        )
        self.image_index_embedding = nn.Parameter(torch.randn(MAX_REFERENCES, hidden_size))

    def patches(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [batch, channels, height, width] as tokens [batch, n, patch]."""
        side = self.config.patch_size
        cut = latents.unflatten(3, (-1, side)).unflatten(2, (-1, side))
        return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        references: torch.Tensor,
        reference_sizes: Sequence[Sequence[Size]],
        context: torch.Tensor | None = None,
        context_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the velocity, [batch, channels, height, width] as `hidden_states` are.

        `timestep` [batch]: 0 is noise. `encoder_hidden_states` [batch, length, size] of texts, with
        their mask [batch, length]. `references` [batch, n, patch]: patches of the latents of all
        images of a row, whose sizes in patches are in `reference_sizes`; n may be 0. `context`
        [batch, m, hidden_size] stands behind a text, where its mask [batch, m] says so.
        """
        height, width = (side // self.config.patch_size for side in hidden_states.shape[2:])
        device, axes = hidden_states.device, self.config.axes_dim_rope
        time, text = self.time_caption_embed(hidden_states, timestep, encoder_hidden_states)
        mask = encoder_attention_mask.bool()
        if context is not None and context_mask is not None:
            text, mask = moved_together(
                torch.cat([text, context], dim=1), torch.cat([mask, context_mask.bool()], dim=1)
            )
        text_rotations = rotations(text_positions(text.shape[1], device), axes)[None]
        for block in self.context_refiner:
            text = block(text, mask, text_rotations)

        first = mask.sum(dim=1)[:, None, None] * torch.tensor([1, 0, 0], device=device)
        places = torch.stack([image_positions(sizes, device) for sizes in reference_sizes])
        reference_rotations = rotations(first + places, axes)
        own = image_positions([(height, width)], device)[None]
        ends = torch.tensor([[[after(sizes), 0, 0]] for sizes in reference_sizes], device=device)
        image_rotations = rotations(first + ends + own, axes)

        image = self.x_embedder(self.patches(hidden_states))
        for block in self.noise_refiner:
            image = block(image, None, image_rotations, time)
        known = self._refined(references, reference_sizes, reference_rotations, time)

        joint = torch.cat([text, known, image], dim=1)
        text_rotations = text_rotations.expand(len(joint), -1, -1)
        rotated = torch.cat([text_rotations, reference_rotations, image_rotations], dim=1)
        seen = torch.cat([mask, mask.new_ones(len(joint), joint.shape[1] - text.shape[1])], dim=1)
        for block in self.layers:
            joint = block(joint, seen, rotated, time)
        made = self.norm_out(joint[:, -height * width :], time)
        return self._whole(made, height, width)

    def _refined(
        self,
        references: torch.Tensor,
        all_sizes: Sequence[Sequence[Size]],
        rotated: torch.Tensor,
        time: torch.Tensor,
    ) -> torch.Tensor:
        """Return tokens [batch, n, size] of images to refer to, each of which saw itself alone."""
        known = self.ref_image_patch_embedder(references)
        if not known.shape[1]:
            return known
        lengths = [[rows * columns for rows, columns in sizes] for sizes in all_sizes]
        images = [
            image + self.image_index_embedding[index]
            for row, own in zip(known, lengths, strict=True)
            for index, image in enumerate(row.split(own))
        ]
        turns = [turn for row, own in zip(rotated, lengths, strict=True) for turn in row.split(own)]
        flat = torch.tensor([length for own in lengths for length in own], device=known.device)
        padded, padded_turns = (pad_sequence(one, batch_first=True) for one in (images, turns))
        mask = torch.arange(padded.shape[1], device=known.device) < flat[:, None]
        counts = torch.tensor([len(own) for own in lengths], device=known.device)
        times = time.repeat_interleave(counts, dim=0)
        for block in self.ref_image_refiner:
            padded = block(padded, mask, padded_turns, times)
        return padded[mask].view(known.shape)

    def _whole(self, tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return tokens [batch, n, patch] as [batch, channels, height, width]."""
        side = self.config.patch_size
        cut = tokens.unflatten(2, (side, side, -1)).unflatten(1, (height, width))
        return cut.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def moved_together(tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [batch, n, size] and their mask [batch, n] with what is masked at the end."""
    order = (~mask).long().argsort(dim=1, stable=True)
    return tokens.gather(1, order[..., None].expand_as(tokens)), mask.gather(1, order)
