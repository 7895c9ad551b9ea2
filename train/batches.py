"""Padded batches of the thinker's samples, with all that depends on lengths."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from loop import Run
from samples import HOP, Sample, num_audio_tokens
from towers import MERGE, PATCH, Segments
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

MIX = {"text": 96, "seen": 96, "heard": 96, "both": 24}
LONG_MIX = {"long": 32, "seen": 4, "heard": 4, "both": 4}
LONG, LONG_SHARE = 100, 0.06  # tokens from which on a talk is long; the share of their batches
CHUNK = 100  # mel frames that the audio tower shortens at a time


class Batches(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Padded batches of all kinds; each worker has a seed of its own."""

    def __init__(self, talks: dict[str, Any], mix: dict[str, int], seed: int) -> None:
        self._talks, self._mix, self._seed = talks, mix, seed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        pick = random.Random(self._seed * 100 + (worker.id if worker else 0))
        while True:
            samples: list[Sample] = []
            mix = LONG_MIX if pick.random() < LONG_SHARE else self._mix
            for kind, count in mix.items():
                samples += pick.choices(self._talks[kind], k=count)
            yield self._batch(samples)

    def _batch(self, samples: list[Sample]) -> dict[str, Any]:
        longest = max(len(one.ids) for one in samples)
        ids = np.zeros((len(samples), longest), np.int64)
        labels = np.full((len(samples), longest), -100, np.int64)
        positions = np.zeros((3, len(samples), longest), np.int64)
        for row, one in enumerate(samples):
            count = len(one.ids)
            ids[row, :count] = one.ids
            labels[row, :count] = np.where(one.learned, one.ids, -100)
            positions[:, row, :count] = np.arange(count) if one.positions is None else one.positions
        lengths = torch.tensor([len(one.ids) for one in samples])
        pixels = [self._talks["pixels"][index] for one in samples for index in one.pictures]
        sides = [len(one) for one in pixels]
        sounds = [self._talks["sounds"][one.sound] for one in samples if one.sound >= 0]
        batch: dict[str, Any] = {
            "ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "positions": torch.from_numpy(positions),
            "lengths": lengths,
            "sides": sides,
            # Of one side at a time, with the places in the order of all.
            "pixels": {
                side: torch.from_numpy(np.stack([one for one in pixels if len(one) == side]))
                for side in sorted(set(sides))
            },
        }
        sound_lengths = [len(one) for one in sounds]
        waves = np.zeros((len(sounds), max(sound_lengths)), np.int16)
        for row, one in enumerate(sounds):
            waves[row, : len(one)] = one
        batch["waves"], batch["sound_lengths"] = (
            torch.from_numpy(waves),
            torch.tensor(sound_lengths),
        )
        return batch | _towers(batch)


def _towers(batch: dict[str, Any]) -> dict[str, Any]:
    """What the towers would compute about lengths on the device, waiting for it each time."""
    grids = torch.tensor([(1, side // PATCH, side // PATCH) for side in batch["sides"]])
    interpolated = modeling.get_vision_interpolation_indices_and_weights(
        grids, num_grid_per_side=8, mode="bilinear", align_corners=True, spatial_merge_size=MERGE
    )
    bounds = F.pad((grids[:, 1] * grids[:, 2]).cumsum(0), (1, 0)).int()
    frames = batch["sound_lengths"] // HOP
    counts = -(-frames // CHUNK)
    total = int(counts.max())
    exists = torch.arange(total) < counts[:, None]
    lengths = (frames[:, None] - CHUNK * torch.arange(total)).clamp(max=CHUNK)[exists]
    sound_bounds = modeling.get_audio_cu_seqlens(lengths, frames, 8 * CHUNK // 2, CHUNK // 2)
    tokens = torch.tensor([num_audio_tokens(int(one)) for one in frames])
    steps = torch.arange(int(tokens.max()))[:, None] < tokens  # [longest, sounds]
    order = torch.arange(steps.numel()).reshape(steps.shape).T[steps.T]
    return {
        "grids": grids,
        "interp_indices": interpolated[0],
        "interp_weights": interpolated[1],
        "position_ids": modeling.get_vision_position_ids(grids, MERGE),
        "vision": Segments.of(bounds),
        "chunks": exists.flatten().nonzero()[:, 0],
        "chunk_lengths": lengths,
        "valid_indices": modeling.get_valid_indices(lengths, CHUNK // 2),
        "audio": Segments.of(sound_bounds),
        "tokens": tokens,
        "order": order,
        "longest": int(tokens.max()),
    }


def with_words(talks: dict[str, Any]) -> dict[int, Any]:
    """The token ids that each sound says, for the head of words."""
    words: dict[int, Any] = {}
    for one in talks["heard"]:
        if one.sound not in words or one.learned.sum() > 0:
            said = one.ids[one.learned][:-1].astype(np.int64)
            words.setdefault(one.sound, said)  # the first sample of a sound is its transcript
    return words


class WordBatches(Batches):
    """Batches that also have the words of their sounds."""

    def __init__(self, talks: dict[str, Any], mix: dict[str, int], seed: int) -> None:
        super().__init__(talks, mix, seed)
        self._words = with_words(talks)

    def _batch(self, samples: list[Sample]) -> dict[str, Any]:
        batch = super()._batch(samples)
        batch["words"] = [self._words[one.sound] for one in samples if one.sound >= 0]
        return batch


def loader(talks: dict[str, Any], run: Run, seed: int) -> Iterator[dict[str, Any]]:
    """Batches from processes beside this one."""
    talks["long"] = [one for one in talks["text"] if len(one.ids) > LONG]
    talks["text"] = [one for one in talks["text"] if len(one.ids) <= LONG]
    mix = {kind: run.size(count) for kind, count in MIX.items()}
    workers = 4 if run.device.type == "cuda" else 0
    data = WordBatches(talks, mix, seed)
    return iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers))
