"""Qwen3-TTS's talker on real engines: the codes that the package speaks, whoever speaks beside."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from references.qwen3_tts_talks import MODELS, SAMPLES_A_FRAME, STRIDE, Talk, key, talks
from support.stages.tts_talker import Codes, TalkerHarness, asked, running_talker

from omnistage.connectors.sweep import make_run_directory
from omnistage.stages.messages.edge import Lead
from omnistage.stages.qwen3_tts.vocoder import StreamingVocoder
from omnistage.stages.vocoder.decoder import StreamPiece

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CUSTOM_VOICE, VOICE_DESIGN, BASE = MODELS
LENGTHS = range(4, 16)  # of twelve texts, in characters


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=MODELS)
async def model(
    request: pytest.FixtureRequest, tts_checkpoints: Path, cpu_engine: None
) -> AsyncIterator[tuple[str, TalkerHarness]]:
    """One model after another: the tests of each follow each other."""
    run = make_run_directory()
    async with running_talker(tts_checkpoints / request.param, run.path) as harness:
        yield request.param, harness
    run.remove()


async def speak(harness: TalkerHarness, some: list[Talk]) -> list[Codes]:
    """Talks that lay their text in one way, all at once."""
    harness.lay_text(some[0].is_whole)
    return list(await asyncio.gather(*map(harness.talk, some)))


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "streamed"])
async def test_codes_equal_the_package(
    is_whole: bool, model: tuple[str, TalkerHarness], spoken: dict[str, torch.Tensor]
) -> None:
    name, harness = model
    some = [talk for talk in talks(name) if talk.is_whole == is_whole]
    for talk, codes in zip(some, await speak(harness, some), strict=True):
        expected = spoken[key(name, talk, "codes")].numpy()
        assert np.array_equal(codes, expected), talk


async def test_samples_equal_the_package(
    model: tuple[str, TalkerHarness], spoken: dict[str, torch.Tensor], tts_checkpoints: Path
) -> None:
    """Also behind the frames of a reference sound, as the talker tells them to code2wav."""
    name, harness = model
    vocoder = StreamingVocoder.from_checkpoint(
        str(tts_checkpoints / name), torch.device("cpu"), torch.float32, 1
    )
    for talk in (talk for talk in talks(name) if talk.is_whole):
        harness.lay_text(is_whole=True)
        request = asked(harness.name(), talk)
        codes = await harness.codes(request)
        opened = harness.opens[request.id]
        lead = opened.tensors["lead"].numpy() if talk.sound_text else codes[:0]
        slot = vocoder.open()
        samples, _, _ = vocoder.decode([StreamPiece(slot, np.concatenate([lead, codes]))])
        vocoder.close(slot)
        heard = samples.flatten()[len(lead) * SAMPLES_A_FRAME :: STRIDE]
        expected = spoken[key(name, talk, "samples")]
        assert torch.allclose(heard, expected, atol=1e-4), talk
        if talk.sound_text:
            assert opened.message.read(Lead) == Lead(len(lead))


async def test_twelve_at_once_on_four_seats_equal_one_at_a_time(
    model: tuple[str, TalkerHarness],
) -> None:
    """Sampled with a seed each: nothing depends on who else speaks."""
    name, harness = model
    first = talks(name)[0]
    harness.lay_text(first.is_whole)
    some = [replace(first, text=first.text[:length]) for length in LENGTHS]

    async def one(number: int) -> Codes:
        sampling = {"max_tokens": 12 + number}
        return await harness.talk(some[number], sampling=sampling, seed=number)

    alone = [await one(number) for number in range(len(some))]
    together = await asyncio.gather(*map(one, range(len(some))))
    assert len({codes.tobytes() for codes in alone}) == len(alone)
    for before, beside in zip(alone, together, strict=True):
        assert np.array_equal(before, beside)


async def test_a_text_in_pieces_is_spoken_as_one_that_is_streamed(
    model: tuple[str, TalkerHarness], spoken: dict[str, torch.Tensor]
) -> None:
    name, harness = model
    talk = next(talk for talk in talks(name) if not talk.is_whole)
    request = asked(harness.name(), talk, body={"input": talk.text[:3], "open": True})
    speaking = asyncio.create_task(harness.codes(request))
    for place in range(3, len(talk.text), 5):
        await asyncio.sleep(0.02)
        last = place + 5 >= len(talk.text)
        harness.stage.more_text(request.id, talk.text[place : place + 5], last)
    codes = await asyncio.wait_for(speaking, 600)
    assert np.array_equal(codes, spoken[key(name, talk, "codes")].numpy())


async def test_a_text_that_stays_empty_is_not_spoken(model: tuple[str, TalkerHarness]) -> None:
    name, harness = model
    talk = talks(name)[0]
    request = asked(harness.name(), talk, body={"input": "", "open": True})
    speaking = asyncio.create_task(harness.codes(request))
    await asyncio.sleep(0.05)
    harness.stage.more_text(request.id, "", last=True)
    assert len(await asyncio.wait_for(speaking, 600)) == 0


async def test_the_gateway_hears_how_many_tokens_a_text_has(
    model: tuple[str, TalkerHarness],
) -> None:
    name, harness = model
    talk = talks(name)[0]
    request = asked(harness.name(), talk, sampling={"max_tokens": 2, "temperature": 0})
    await harness.codes(request)
    role = 3  # <|im_start|>assistant and a line break
    told = f"user\n{talk.instructions}\n"  # around it the start and the end of a turn
    instructions = len(told) - len("user") + 3 if talk.instructions else 0
    assert harness.num_tokens[request.id] == len(talk.text) + role + instructions
