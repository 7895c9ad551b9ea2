"""The talker in an engine: late inputs, requests that are held."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.oracles.reference import Reference
from support.stages.overlapping import (
    Harness,
    running_talker,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
SPOKEN = [
    ("Hello, who are you?", 30),
    ("What is a fox to a hound? " * 5, 20),
    ("Hm", 25),
    ("Tell me a tale of two cities", 40),
    ("And again", 12),
    ("Six of them then", 33),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def talker(
    tiny_checkpoint: Path, run_directory: Path, reference: Reference, cpu_engine: None
) -> AsyncIterator[Harness]:
    async with running_talker("talker", tiny_checkpoint, run_directory, reference) as harness:
        yield harness


@pytest.mark.parametrize("lags_s", [(0.0,), (0.0, 0.01, 0.03)], ids=["up front", "late"])
async def test_codes_equal_the_reference_however_late_the_tokens_come(
    lags_s: tuple[float, ...], talker: Harness
) -> None:
    names = [f"late-{lags_s}-{number}" for number in range(len(SPOKEN))]
    jobs: list[Coroutine[Any, Any, object]] = []
    for number, (name, (text, num_frames)) in enumerate(zip(names, SPOKEN, strict=True)):
        prompt, spoken, _ = talker.expected(text, num_frames)
        jobs.append(talker.generate(name, prompt, num_frames))
        jobs.append(talker.send(name, spoken, lags_s[number % len(lags_s)]))
    await asyncio.gather(*jobs)
    codes = await talker.codes(set(names))
    for name, (text, num_frames) in zip(names, SPOKEN, strict=True):
        assert np.array_equal(codes[name], talker.expected(text, num_frames)[2]), name


async def test_a_held_request_can_be_aborted_and_its_row_reused(talker: Harness) -> None:
    text, num_frames = SPOKEN[0]
    prompt, spoken, expected = talker.expected(text, num_frames)
    stuck = [
        asyncio.create_task(talker.generate(f"stuck-{n}", prompt, num_frames)) for n in range(6)
    ]
    sent = [talker.send(f"stuck-{n}", spoken[:1], 0.0, is_whole=False) for n in range(3)]
    await asyncio.gather(*sent)
    await asyncio.sleep(0.3)
    assert not any(task.done() for task in stuck)
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    names = {f"after-{n}" for n in range(4)}
    await asyncio.gather(
        *(talker.generate(name, prompt, num_frames) for name in names),
        *(talker.send(name, spoken, 0.0) for name in names),
    )
    for codes in (await talker.codes(names)).values():
        assert np.array_equal(codes, expected)
