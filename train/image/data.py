"""What the trainings read: many drawings as tensors, with the token ids of their prompts."""

import multiprocessing
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from image.parts import NUM_DROPPED, TEMPLATE
from image.render import Contents, contents
from image.scenes import drawing

from omnistage.stages.checkpoint.tokenizer import TinyTokenizer

LENGTHS = (16, 24, 48)  # tokens of a prompt and of the template's end, padded to one of them
NOTHING = ("", " ")  # prompts of no picture
MORE_FULL = 1  # times more that a drawing of three shapes, the most, is trained
_SEED = 21
_PART = 5_000


@dataclass(frozen=True)
class Pool:
    """Drawings in order of their prompts' lengths.

    ids [n, tokens] and counts [n] are of whole texts, padded behind; `groups`: first row, end and
    padded length of each of LENGTHS; `nothing`: the same of the prompts of no picture.
    """

    contents: Contents
    ids: torch.Tensor
    counts: torch.Tensor
    groups: Sequence[tuple[int, int, int]]
    nothing: tuple[torch.Tensor, torch.Tensor]


def pool(count: int, tokenizer: TinyTokenizer, device: torch.device) -> Pool:
    """Drawings of the trained part; the same for the same count. Forks: call it first."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    seeds = range(_SEED, _SEED + max(1, count // _PART))
    part = partial(_part, tokenizer=tokenizer, count=min(count, _PART))
    with multiprocessing.get_context("fork").Pool(min(len(seeds), os.cpu_count() or 1)) as workers:
        made = workers.map(part, seeds)
    ids, counts, *fields = (
        torch.from_numpy(np.concatenate(field)) for field in zip(*made, strict=True)
    )
    drawn = Contents(*fields)
    order = counts.argsort(stable=True)
    ids, counts, drawn = ids[order], counts[order], drawn[order]
    ends = torch.searchsorted(counts, torch.tensor(LENGTHS) + NUM_DROPPED, right=True).tolist()
    starts = [0, *ends[:-1]]
    groups = [one for one in zip(starts, ends, LENGTHS, strict=True) if one[0] < one[1]]
    nothing = _ids(NOTHING, tokenizer)
    return Pool(
        drawn.to(device),
        ids.to(device),
        counts.to(device),
        groups,
        (nothing[0].to(device), nothing[1].to(device)),
    )


def _part(seed: int, tokenizer: TinyTokenizer, count: int) -> list[npt.NDArray[Any]]:
    pick = random.Random(seed)
    drawings = [drawing(pick) for _ in range(count)]
    ids, counts = _ids([one.prompt for one in drawings], tokenizer)
    drawn = contents(drawings)
    (short,) = (counts <= LENGTHS[-1] + NUM_DROPPED).nonzero(as_tuple=True)
    full = short[(drawn.kinds[short] >= 0).all(1)]
    rows = torch.cat([short, *[full] * MORE_FULL])
    drawn = drawn[rows]
    made = (ids[rows], counts[rows], drawn.colours, drawn.kinds, drawn.places)
    return [one.numpy() for one in made]


def _ids(prompts: Sequence[str], tokenizer: TinyTokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    width = LENGTHS[-1] + NUM_DROPPED
    ids = torch.full((len(prompts), width), tokenizer.id("<|endoftext|>"), dtype=torch.int32)
    counts = torch.zeros(len(prompts), dtype=torch.int32)
    for row, prompt in enumerate(prompts):
        found = tokenizer.tokenizer.encode(TEMPLATE.format(prompt)).ids
        counts[row] = len(found)
        ids[row, : len(found)] = torch.tensor(found[:width])
    return ids, counts
