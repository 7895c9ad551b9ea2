"""Readers of what comes before an image: texts, images as seen, images as their latents.

A context is the keys and values of all tokens so far, after rotation: [batch, layers, 2, tokens,
heads, size]. A reader returns a longer one. All tokens of an image have one position and see each
other; those of a text count on, and see what is before them.
"""

from functools import partial

import torch
from diffusers import ModelMixin
from torch import Tensor, nn

from omnistage.stages.bagel.mixture import attention, run_layers
from omnistage.stages.bagel.settings import BagelSettings
from omnistage.stages.bagel.transformer import BagelTransformer
from omnistage.stages.bagel.vision import SeenTokens


class ContextReader(ModelMixin):
    """The denoiser's own layers, reading."""

    def __init__(self, transformer: BagelTransformer) -> None:
        super().__init__()
        self.embed_tokens = transformer.embed_tokens
        self.layers = transformer.layers
        self.norm = transformer.norm
        self.rotary = transformer.rotary
        self.register_buffer("marks", transformer.marks, persistent=False)

    def extended(
        self,
        context: Tensor,
        positions: Tensor,
        read: Tensor,
        drawn: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the context with these tokens, and the hidden states of those that are read.

        `positions`: int64 [batch, tokens], of those read and then of those drawn; `read`, `drawn`:
        [batch, tokens, hidden_size].
        """
        batch, num_read = read.shape[:2]
        num_drawn = 0 if drawn is None else drawn.shape[1]
        places = positions[:, :num_read].flatten(), positions[:, num_read:].flatten()
        rotation = self.rotary(torch.cat(places))
        mask = None
        if is_causal and num_read > 1:
            num_before = context.shape[3]
            shape = num_read, num_before + num_read
            mask = torch.ones(shape, dtype=torch.bool, device=read.device).tril(num_before)
        made: list[Tensor] = []

        def attend(number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            rows = partial(_rows, batch=batch, sizes=(num_read, num_drawn))
            new = torch.stack([rows(keys), rows(values)], dim=1)
            made.append(new)
            whole = torch.cat([context[:, number], new], dim=2)
            attended = attention(rows(queries), whole[:, 0], whole[:, 1], mask).flatten(2)
            parts = attended.split([num_read, num_drawn], dim=1)
            return torch.cat([one.flatten(0, 1) for one in parts])

        last, _ = run_layers(
            self.layers,
            read.flatten(0, 1),
            None if drawn is None else drawn.flatten(0, 1),
            rotation,
            attend,
        )
        longer = torch.cat([context, torch.stack(made, dim=1)], dim=3)
        return longer, last.unflatten(0, (batch, num_read))

    def marked(self, batch: int) -> Tensor:
        """Return the tokens of an image's start and end, [batch, 2, hidden_size]."""
        made: Tensor = self.embed_tokens(self.marks).expand(batch, -1, -1)
        return made


def _rows(tokens: Tensor, batch: int, sizes: tuple[int, int]) -> Tensor:
    """Return packed tokens [batch * n + batch * m, ...] as [batch, n + m, ...]."""
    num_read = batch * sizes[0]
    parts = tokens[:num_read], tokens[num_read:]
    rows = [one.unflatten(0, (batch, n)) for one, n in zip(parts, sizes, strict=True) if n]
    return torch.cat(rows, dim=1)


class TextReader(ContextReader):
    """Reads texts, and predicts what follows."""

    def __init__(self, transformer: BagelTransformer, settings: BagelSettings) -> None:
        super().__init__(transformer)
        config = settings.text
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, context: Tensor, position: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context with a text, and the logits of the token after it.

        `position`: int64 [batch], the text's first; `ids`: int64 [batch, tokens]; logits: float32
        [batch, vocabulary].
        """
        places = position[:, None] + torch.arange(ids.shape[1], device=ids.device)
        longer, hidden = self.extended(context, places, self.embed_tokens(ids), is_causal=True)
        return longer, self.lm_head(self.norm(hidden[:, -1])).float()


class ImageReader(ContextReader):
    """Reads images as the vision tower sees them."""

    def __init__(self, transformer: BagelTransformer, settings: BagelSettings) -> None:
        super().__init__(transformer)
        self.seen = SeenTokens(settings)

    def forward(self, context: Tensor, position: Tensor, parts: Tensor, cells: Tensor) -> Tensor:
        """Return the context with an image.

        `position`: int64 [batch]; `parts`: float32 [batch, n, size of a part's pixels]; `cells`:
        int64 [batch, n].
        """
        seen = self.seen(parts, cells)
        batch, number = cells.shape
        places = position[:, None].expand(-1, number + 2)
        return self.extended(context, places, torch.cat([self.marked(batch), seen], dim=1))[0]


class LatentReader(ContextReader):
    """Reads images as latents without noise, whose tokens are drawn ones."""

    def __init__(self, transformer: BagelTransformer) -> None:
        super().__init__(transformer)
        self.latents = transformer.latents

    def forward(self, context: Tensor, position: Tensor, parts: Tensor, cells: Tensor) -> Tensor:
        """Return the context with an image.

        `position`: int64 [batch]; `parts`: float32 [batch, n, size of a part of latents]; `cells`:
        int64 [batch, n].
        """
        batch, number = cells.shape
        times = torch.zeros(cells.shape, device=cells.device)
        drawn = self.latents(parts, cells, times)
        places = position[:, None].expand(-1, number + 2)
        return self.extended(context, places, self.marked(batch), drawn)[0]
