"""One request for each piece of a long text."""

import numpy as np
import pytest
from support.api.bodies import speech_request

from omnistage.server.runtime.request import (
    AudioOutput,
    InputTokensOutput,
    TextOutput,
)
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.speech.pieces import is_blank
from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.requests import (
    SpeechUsage,
    pieces_of_request,
    seed_of_piece,
    with_reference,
)
from omnistage.stage_configs.declared.sampling import MAX_SEED
from omnistage.stages.messages.body import VoiceSample

REQUEST = speech_request("speech-1", ["audio"], 7, input="One two. Three four.", language="x")


def test_a_short_text_is_one_request_as_it_is() -> None:
    assert pieces_of_request(REQUEST, 20) == [REQUEST]


def test_each_piece_has_an_id_and_a_seed_of_its_own_and_all_else_in_common() -> None:
    sound = Reference.of(np.ones(24_000, np.float32), "said")
    asked = with_reference(REQUEST, sound)
    first, second = pieces_of_request(asked, 12)
    assert [one.given_text.text for one in (first, second)] == ["One two.", "Three four."]
    assert (first.id, first.message.seed) == ("speech-1", 7)
    assert (second.id, second.message.seed) == ("speech-1-1", seed_of_piece(7, 1))
    for one in (first, second):
        assert one.given_text.language == "x"
        assert one.given_text.reference == VoiceSample(sound.key, "said")
        assert np.array_equal(one.tensors["reference"].numpy(), sound.samples)


def test_seeds_of_pieces_are_derived_and_differ() -> None:
    seeds = {seed_of_piece(seed, number) for seed in (-1, 0, 1) for number in range(100)}
    assert len(seeds) == 300
    assert all(-1 <= seed <= MAX_SEED for seed in seeds)
    unseeded = speech_request("a", ["audio"], input="One. Two.")
    assert [one.message.seed for one in pieces_of_request(unseeded, 5)] == [None, None]


@pytest.mark.parametrize("blank", [" ", "\u200b", "\ufeff "])
def test_pieces_without_a_word_are_left_out(blank: str) -> None:
    spaced = speech_request("a", ["audio"], input=f"One. {blank * 40} Two.")
    pieces = [one.given_text.text for one in pieces_of_request(spaced, 10)]
    assert not any(map(is_blank, pieces))
    assert [piece.strip(blank) for piece in pieces] == ["One.", "Two."]


def test_what_pieces_used_is_summed_whoever_says_it() -> None:
    usage = SpeechUsage()
    usage.add(TextOutput({"usage": {"prompt_tokens": 3}}))
    usage.add(InputTokensOutput(4))
    usage.add(AudioOutput(SampleFormat(24_000), num_frames=5))
    usage.add(AudioOutput(SampleFormat(24_000), num_frames=6))
    assert usage.to_dict() == {"input_tokens": 7, "output_tokens": 11, "total_tokens": 18}
