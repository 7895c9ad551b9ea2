"""VoxCPM2's talker on a real engine: the latents of the package, whoever speaks beside."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from references.voxcpm2_talks import MAX_PATCHES, TALKS, Talk, key, sound_of
from support.stages.tts_talker import TalkerHarness, opened, running_talker

from omnistage.connectors.sweep import make_run_directory
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-4
PATH = ["talker", "vae"]
LIMITS = {"max_tokens": MAX_PATCHES}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def harness(voxcpm2_checkpoint: Path, cpu_engine: None) -> AsyncIterator[TalkerHarness]:
    run = make_run_directory()
    async with running_talker(voxcpm2_checkpoint, run.path, "voxcpm2") as running:
        yield running
    run.remove()


def asked(harness: TalkerHarness, talk: Talk, **sampling: Any) -> Opened:
    body: dict[str, Any] = {"input": talk.text, "instructions": talk.instructions}
    sound = None
    if talk.sound_length:
        sound = sound_of(talk)
        body["reference"] = {"key": str(talk.sound_length), "text": talk.sound_text}
    given = {"seed": talk.seed, **LIMITS, **sampling}
    params = {"talker": given}
    return opened(harness.name(), body, sound=sound, path=PATH, stage_params=params)


async def latents(harness: TalkerHarness, talk: Talk, **sampling: Any) -> npt.NDArray[np.float32]:
    return np.asarray(await harness.codes(asked(harness, talk, **sampling)), np.float32)


def is_same(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> bool:
    return one.shape == other.shape and float(np.abs(one - other).max()) <= TOLERANCE


async def test_latents_equal_the_package_alone_and_all_at_once(
    harness: TalkerHarness, voxcpm2_spoken: dict[str, torch.Tensor]
) -> None:
    """Their lengths differ, and four have a seat."""
    alone = [await latents(harness, talk) for talk in TALKS]
    together = await asyncio.gather(*(latents(harness, talk) for talk in TALKS))
    assert len({len(one) for one in alone}) > 3
    for talk, before, beside in zip(TALKS, alone, together, strict=True):
        expected = voxcpm2_spoken[key(talk, "latents")].numpy()
        assert is_same(before, expected), talk
        assert is_same(beside, expected), talk
