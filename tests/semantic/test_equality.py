"""Greedy answers of trained weights equal transformers' generate, to their natural ends."""

import numpy as np
import pytest
from support.api.prompts import Question, image_part, plain, question, sound_part, text
from support.media.audio import samples_of
from support.oracles.meaning import RED_CIRCLE, SmallServer
from support.oracles.recordings import recording
from support.oracles.reference import Reference

from omnistage.stage_configs.models.embedded import CHECKPOINTS

pytestmark = pytest.mark.engine

MAX_TOKENS, MAX_FRAMES = 48, 200
RATE_HZ, HOP = 16_000, 160
_WHOLE = samples_of(recording("day_after_monday"), RATE_HZ)
SOUND = _WHOLE[: len(_WHOLE) // HOP * HOP]
QUESTIONS = [
    plain("text", ("user", "What is the capital of Japan?")),
    question("picture", [image_part(RED_CIRCLE), text("What is this?")], images=[RED_CIRCLE]),
    question("sound", [sound_part(SOUND)], audio=[SOUND / 32768]),
]


@pytest.fixture(scope="module")
def trained() -> Reference:
    """transformers over the embedded checkpoint."""
    return Reference(str(CHECKPOINTS / "small"))


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda one: one.name)
async def test_an_answer_equals_the_reference(
    asked: Question, small: SmallServer, trained: Reference
) -> None:
    answer = trained.answer(asked, MAX_TOKENS, MAX_FRAMES, "adam")
    reply = await small.server.ask(
        asked.messages,
        audio={"voice": "adam", "format": "pcm16"},
        max_completion_tokens=MAX_TOKENS,
        stage_params={"talker": {"temperature": 0, "max_tokens": MAX_FRAMES}},
    )
    assert reply.raw["choices"][0]["finish_reason"] == "stop"
    assert reply.text == answer.text
    assert 0 < len(reply.codes) < MAX_FRAMES
    assert np.array_equal(reply.codes, answer.codes)
    assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4
