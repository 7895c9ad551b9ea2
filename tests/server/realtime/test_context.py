"""How many tokens a conversation is taken for: by kind, as responses have shown."""

from typing import Any

import numpy as np
import pytest

from omnistage.server.realtime.context import Amounts, TokenRates
from omnistage.server.realtime.items import Item, Part
from omnistage.server.realtime.playout import PlayedAnswer
from omnistage.server.realtime.voice.formats import PCM, UserAudio

SOUND = UserAudio(np.zeros(24_000, np.int16).tobytes(), PCM)


def message(*parts: Part) -> Item:
    return Item("item", content=list(parts))


def usage(prompt_tokens: int, **media: int) -> dict[str, Any]:
    details = {"multimodal_tokens": media}
    return {"prompt_tokens": prompt_tokens, "prompt_tokens_details": details}


def test_contents_are_measured_as_the_model_gets_them() -> None:
    heard = message(Part("input_audio", sound=SOUND, transcript="what was said"))
    assert Amounts.of([heard]) == Amounts(16, 1000, 0)
    image = Part("input_image", image={"image_url": {"url": "data:"}})
    assert Amounts.of([message(image, Part("input_text", text="Ä"))]) == Amounts(18, 0, 1)
    spoken = PlayedAnswer(["Hello", " there."], ms=1000.0)
    assert Amounts.of([message(Part("output_audio", spoken=spoken))]).text == 16 + 12
    spoken.truncate(500)
    assert Amounts.of([message(Part("output_audio", spoken=spoken))]).text == 16 + 5
    call = Item("call", "function_call", name="look", text="{}")
    assert Amounts.of([call], "Be brief.") == Amounts(9 + 4 + 2 + 16, 0, 0)


def test_tokens_are_those_of_the_last_prompt_by_kind() -> None:
    rates = TokenRates()
    amounts = Amounts(text=100, audio=2000, image=1)
    rates.learn(amounts, usage(50 + 26 + 300, audio=26, image=300))
    assert rates.tokens(amounts) == pytest.approx(376)
    assert rates.tokens(Amounts(audio=1000)) == pytest.approx(13)
    rates.learn(Amounts(text=100), usage(40))  # nothing of audio in this one
    assert rates.tokens(Amounts(text=10, audio=1000)) == pytest.approx(4 + 13)


@pytest.mark.parametrize("nothing", [{}, {"prompt_tokens": 0}, {"prompt_tokens": None}])
def test_a_prompt_that_was_not_read_teaches_nothing(nothing: dict[str, Any]) -> None:
    rates, amounts = TokenRates(), Amounts(100, 100, 1)
    before = rates.tokens(amounts)
    rates.learn(amounts, nothing)
    assert rates.tokens(amounts) == before
