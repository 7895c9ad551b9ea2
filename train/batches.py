"""Padded batches of the thinker's samples, with all that depends on lengths."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from language.samples import HOP, Sample, num_audio_tokens, tokenizer_of_all
from language.tasks import Tasks
from loop import Run
from towers import MERGE, PATCH, Segments
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

MIX = {"text": 96, "seen": 256, "heard": 96, "both": 48, "tools": 32}
LONG = 208  # tokens from which on a talk is kept for a batch of such
CHUNK = 100  # mel frames that the audio tower shortens at a time


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """A padded batch."""
    longest = max(len(one.ids) for one in samples)
    ids = np.zeros((len(samples), longest), np.int64)
    labels = np.full((len(samples), longest), -100, np.int64)
    positions = np.zeros((3, len(samples), longest), np.int64)
    for row, one in enumerate(samples):
        count = len(one.ids)
        ids[row, :count] = one.ids
        labels[row, :count] = np.where(one.learned, one.ids, -100)
        positions[:, row, :count] = one.positions
    pictures = [picture for one in samples for picture in one.pictures]
    sounds = [sound for one in samples for sound in one.sounds]
    shapes = [one.pixels.shape[:2] for one in pictures]
    lengths = [len(one.samples) for one in sounds]
    waves = np.zeros((len(sounds), max(lengths)), np.int16)
    for row, sound in enumerate(sounds):
        waves[row, : lengths[row]] = sound.samples
    batch: dict[str, Any] = {
        "kinds": [one.kind for one in samples],
        "ids": torch.from_numpy(ids),
        "labels": torch.from_numpy(labels),
        "positions": torch.from_numpy(positions),
        "shapes": shapes,
        # Of one shape at a time, with the places in the order of all.
        "pixels": {
            shape: torch.from_numpy(
                np.stack([one.pixels for one in pictures if one.pixels.shape[:2] == shape])
            )
            for shape in sorted(set(shapes))
        },
        "scenes": torch.from_numpy(np.stack([one.labels for one in pictures])),
        "waves": torch.from_numpy(waves),
        "sound_lengths": torch.tensor(lengths),
    }
    batch["patch_order"] = _patch_order(shapes, batch["pixels"])
    batch |= _towers(batch)
    return batch | spelled([sound.words for sound in sounds], batch["tokens"])


def _patch_order(
    shapes: Sequence[tuple[int, ...]], pixels: dict[tuple[int, ...], torch.Tensor]
) -> torch.Tensor:
    """Where each patch of the pictures in order is among those of one shape after another."""
    starts, start = {}, 0
    for shape, same in pixels.items():
        starts[shape] = start
        start += len(same) * shape[0] * shape[1] // PATCH**2
    parts = []
    for shape in shapes:
        count = shape[0] * shape[1] // PATCH**2
        parts.append(torch.arange(starts[shape], starts[shape] + count))
        starts[shape] += count
    return torch.cat(parts)


def _towers(batch: dict[str, Any]) -> dict[str, Any]:
    """What the towers would compute about lengths on the device, waiting for it each time."""
    grids = torch.tensor([(1, high // PATCH, wide // PATCH) for high, wide in batch["shapes"]])
    interpolated = modeling.get_vision_interpolation_indices_and_weights(
        grids, num_grid_per_side=8, mode="bilinear", align_corners=True, spatial_merge_size=MERGE
    )
    patches = grids[:, 1] * grids[:, 2]
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
        "vision": Segments.of(F.pad(patches.cumsum(0), (1, 0)).int()),
        "picture_of_row": torch.repeat_interleave(patches // MERGE**2),
        "chunks": exists.flatten().nonzero()[:, 0],
        "chunk_lengths": lengths,
        "valid_indices": modeling.get_valid_indices(lengths, CHUNK // 2),
        "audio": Segments.of(sound_bounds),
        "tokens": tokens,
        "order": order,
        "longest": int(tokens.max()),
    }


def spelled(said: Sequence[str], rows: torch.Tensor) -> dict[str, Any]:
    """Token ids of what sounds say, and which of them have rows enough for a CTC loss."""
    encode = tokenizer_of_all().tokenizer.encode
    ids = [torch.tensor(encode(words).ids) for words in said]
    sizes = torch.tensor([len(one) for one in ids])
    # Between two equal tokens is a blank.
    needed = sizes + torch.tensor([int((one[1:] == one[:-1]).sum()) for one in ids])
    return {"words": torch.cat(ids), "word_counts": sizes, "has_rows": needed <= rows}


class Batches(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Batches of all kinds of tasks without end; each worker has a seed of its own."""

    def __init__(self, tasks: Tasks, mix: dict[str, int], seed: int) -> None:
        self._tasks, self._mix, self._seed = tasks, mix, seed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        pick = random.Random(self._seed * 100 + (worker.id if worker else 0))
        # Long talks, of tools, wait until there are enough for a batch of them.
        kept: list[Sample] = []
        while True:
            short: list[Sample] = []
            for kind, count in self._mix.items():
                for _ in range(count):
                    one = self._tasks.kinds[kind](pick)
                    (kept if len(one.ids) > LONG else short).append(one)
            yield collate(short)
            if len(kept) >= self._mix["text"]:
                some = [self._tasks.kinds[kind](pick) for kind in ("both", "both")]
                yield collate([*kept, *some])
                kept = []


def loader(tasks: Tasks, run: Run, seed: int) -> Iterator[dict[str, Any]]:
    """Batches from processes beside this one."""
    mix = {kind: run.size(count) for kind, count in MIX.items()}
    workers = run.workers if run.device.type == "cuda" else 0
    data = Batches(tasks, mix, seed)
    ahead = 4 if workers else None
    return iter(
        torch.utils.data.DataLoader(
            data, batch_size=None, num_workers=workers, prefetch_factor=ahead
        )
    )


def judged(tasks: Tasks, count: int) -> list[dict[str, Any]]:
    """Batches of held-out samples, so many of each task."""
    pick = random.Random(99)
    samples = [make(pick) for make in tasks.kinds.values() for _ in range(count)]
    samples.sort(key=lambda one: len(one.ids))
    media = [one for one in samples if one.pictures and one.sounds]
    # Every batch has a picture and a sound.
    parts = [samples[at : at + 128] for at in range(0, len(samples), 128)]
    return [collate([*part, media[0]]) for part in parts]


class Score:
    """Answers that are right in every token, by kind."""

    def __init__(self) -> None:
        self._right: Counter[str] = Counter()
        self._all: Counter[str] = Counter()

    def add(self, kinds: Sequence[str], right: Sequence[bool]) -> None:
        """Counts a batch; its last sample is there for its media only."""
        for kind, one in list(zip(kinds, right, strict=True))[:-1]:
            self._right[kind] += one
            self._all[kind] += 1

    def __str__(self) -> str:
        return ", ".join(
            f"{kind} {self._right[kind]}/{count}" for kind, count in sorted(self._all.items())
        )
