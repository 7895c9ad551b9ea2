"""transformers' Qwen2.5-Omni as the oracle of its talker: rows that are spoken, codes, logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.oracles.qwen2_5_omni import rows_of

from omnistage.stages.qwen2_5_omni.reference import end_ids, for_generate, load
from omnistage.stages.vllm.models.rope import Grid


@dataclass(frozen=True)
class Asked:
    """A prompt's ids, its media as the reference takes them, and where they are."""

    ids: torch.Tensor
    media: Mapping[str, torch.Tensor]
    grids: tuple[Grid, ...] = ()


@dataclass(frozen=True)
class Spoken:
    """What the talker is given and what it makes of that.

    `rows` float32 [positions that were fed, width]; `codes` as they are heard; `logits` of each
    step, one more than there are codes if an end was sampled.
    """

    num_prompt: int
    grids: tuple[Grid, ...]
    rows: npt.NDArray[np.float32]
    codes: list[int]
    logits: torch.Tensor


class SpokenReference:
    """A checkpoint in transformers, float32 and greedy; nothing is decoded to sound."""

    def __init__(self, folder: str) -> None:
        self.model: Any = load(folder, torch.float32)
        self.config = self.model.config
        self.ends = end_ids(self.model)
        self._scores: list[torch.Tensor] = []
        self._heard: list[int] = []
        self._thought: Any = None
        self.model.talker.codec_head.register_forward_hook(
            lambda _module, _args, out: self._scores.append(out[0, -1])
        )
        self.model.token2wav.forward = self._hear
        thinks = self.model.thinker.generate

        def thinker(**options: Any) -> Any:
            self._thought = thinks(**options)
            return self._thought

        self.model.thinker.generate = thinker

    def _hear(self, code: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        self._heard = code[0].tolist()
        return torch.zeros(1)

    @torch.no_grad()
    def answer(self, asked: Asked, num_tokens: int, num_codes: int, speaker: str) -> Spoken:
        """At most so many tokens of text, and so many codes."""
        self._scores.clear()
        self.model.generate(
            asked.ids,
            attention_mask=torch.ones_like(asked.ids),
            speaker=speaker,
            thinker_max_new_tokens=num_tokens,
            thinker_do_sample=False,
            talker_do_sample=False,
            talker_max_new_tokens=num_codes,
            talker_eos_token_id=self.ends,
            **for_generate(asked.media),
        )
        rows = rows_of(self.model, self._thought).numpy()
        return Spoken(asked.ids.shape[1], asked.grids, rows, self._heard, torch.stack(self._scores))


def words(count: int, seed: int) -> Asked:
    """Text alone."""
    generator = torch.Generator().manual_seed(seed)
    return Asked(torch.randint(3, 90, (1, count), generator=generator), {})


def picture_and_sound(config: Any) -> Asked:
    """An image of 2 x 3 tokens and 0.4 s of sound among text."""
    thinker, generator = config.thinker_config, torch.Generator().manual_seed(4)
    text = torch.randint(3, 90, (12,), generator=generator).tolist()
    image = [
        thinker.vision_start_token_id,
        *[thinker.image_token_index] * 6,
        thinker.vision_end_token_id,
    ]
    sound = [
        thinker.audio_start_token_id,
        *[thinker.audio_token_index] * 10,
        thinker.audio_end_token_id,
    ]
    vision = thinker.vision_config
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    media = {
        "pixel_values": torch.randn(24, patch, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 6]]),
        "input_features": torch.randn(1, 128, 40, generator=generator),
        "feature_attention_mask": torch.ones(1, 40, dtype=torch.long),
    }
    ids = torch.tensor([text[:4] + image + text[4:7] + sound + text[7:]])
    return Asked(ids, media, (Grid(5, (1, 2, 3), 25.0),))
