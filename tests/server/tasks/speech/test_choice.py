"""What each kind of model takes of what a request says of its voice."""

from typing import Any

import numpy as np
import pytest
from support.media.sounds import data_url, tone, wav_of

from omnistage.server.common.errors import ApiError
from omnistage.server.tasks.speech.choice import (
    PLAIN,
    Asked,
    VoiceChoice,
    check_instructions,
    check_task,
    chosen_language,
    chosen_voice,
)
from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.stored_voices import StoredVoices
from omnistage.stages.messages.to_gateway import Speech

LANGUAGES = ["Chinese", "English"]
NAMED = Speech(LANGUAGES, max_text=500)
DESIGNED = Speech(LANGUAGES, needs_instructions=True)
CLONING = Speech(LANGUAGES, takes_sound=True, needs_sound=True)
MIXED = Speech(takes_sound=True)
SPEAKERS = ["ethan", "vivian"]
URL = data_url(wav_of(tone()))


@pytest.fixture
async def voices() -> StoredVoices:
    stored = StoredVoices()
    samples = np.ones(24_000, np.float32)
    await stored.add("mine", "c", Reference.of(samples, "said"))
    await stored.add("silent", "c", Reference.of(samples, None))
    return stored


def chosen(voices: StoredVoices, speech: Speech, speakers: Any = (), **asked: Any) -> VoiceChoice:
    return chosen_voice(Asked(**asked), speech, speakers, voices)


@pytest.mark.parametrize("speech", [PLAIN, NAMED, MIXED])
def test_a_name_that_the_model_knows_is_taken_in_any_case(
    speech: Speech, voices: StoredVoices
) -> None:
    assert chosen(voices, speech, SPEAKERS, voice="Ethan") == VoiceChoice("ethan")
    assert chosen(voices, speech, SPEAKERS) == VoiceChoice()


@pytest.mark.parametrize("speech", [PLAIN, NAMED, DESIGNED, MIXED])
def test_default_is_no_name_for_clients_that_must_say_one(
    speech: Speech, voices: StoredVoices
) -> None:
    assert chosen(voices, speech, SPEAKERS, voice="default") == VoiceChoice()


def test_names_are_taken_as_they_are_where_none_are_known(voices: StoredVoices) -> None:
    assert chosen(voices, PLAIN, voice="Nobody") == VoiceChoice("Nobody")


def test_a_stored_voice_is_taken_by_name_and_id_with_its_words(voices: StoredVoices) -> None:
    mine = voices.find("mine")
    assert mine is not None
    for called in ("MINE", mine.id):
        assert chosen(voices, CLONING, voice=called) == VoiceChoice(stored=mine, text="said")
    alone = chosen(voices, CLONING, voice="mine", speaker_only=True)
    assert alone == VoiceChoice(stored=mine, text=None)


def test_a_sound_is_taken_with_its_words_or_without(voices: StoredVoices) -> None:
    for asked, text in (
        ({}, None),
        ({"ref_text": "a"}, "a"),
        ({"ref_text": "a", "voice": "default"}, "a"),
        ({"ref_text": "a", "speaker_only": True}, None),
        ({"ref_text": "a", "speaker_only": False}, "a"),
    ):
        choice = chosen(voices, CLONING, ref_audio=URL, **asked)
        assert choice.sound is not None
        assert choice.text == text
        assert choice.has_sound


REFUSED = [
    (NAMED, {"voice": "nobody"}, "voice", "allowed: ethan, vivian, default"),
    (NAMED, {"voice": "mine"}, "voice", "a voice made from a sound is not supported"),
    (NAMED, {"ref_audio": URL}, "ref_audio", "a voice made from a sound is not supported"),
    (PLAIN, {"ref_audio": URL}, "ref_audio", "a voice made from a sound is not supported"),
    (DESIGNED, {"voice": "nobody"}, "voice", "is unknown"),
    (CLONING, {}, "voice", "name a stored voice, or send one as ref_audio"),
    (CLONING, {"voice": "default"}, "voice", "name a stored voice, or send one as ref_audio"),
    (CLONING, {"voice": "voice_0"}, "voice", "is unknown"),
    (CLONING, {"voice": "mine", "ref_audio": URL}, "ref_audio", "beside a voice"),
    (CLONING, {"voice": "mine", "ref_text": "a"}, "ref_text", "needs ref_audio"),
    (CLONING, {"ref_audio": "x.wav"}, "ref_audio", "must be a data, http"),
    (CLONING, {"ref_audio": URL, "speaker_only": False}, "x_vector_only_mode", "must be true"),
    (CLONING, {"voice": "silent", "speaker_only": False}, "x_vector_only_mode", "must be true"),
    (NAMED, {"voice": "ethan", "speaker_only": True}, "x_vector_only_mode", "needs a stored"),
]


@pytest.mark.parametrize(("speech", "asked", "param", "says"), REFUSED)
def test_what_a_model_has_not_is_refused_and_says_what_to_do(
    speech: Speech, asked: dict[str, Any], param: str, says: str, voices: StoredVoices
) -> None:
    speakers = SPEAKERS if speech is NAMED else ()
    with pytest.raises(ApiError, match=says) as caught:
        chosen(voices, speech, speakers, **asked)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_language_is_called_as_the_model_does() -> None:
    for said, known in (("english", "English"), ("EN", "English"), ("zh", "Chinese")):
        assert chosen_language(said, NAMED) == known
    for speech in (NAMED, PLAIN):
        assert chosen_language(None, speech) is chosen_language("Auto", speech) is None
    for said, speech, says in (
        ("Klingon", NAMED, "allowed: auto, Chinese, English"),
        ("de", NAMED, "is unknown"),
        ("English", PLAIN, "not supported"),
    ):
        with pytest.raises(ApiError, match=says) as caught:
            chosen_language(said, speech)
        assert caught.value.param == "language"


def test_a_task_must_be_the_model_s() -> None:
    models = {"CustomVoice": NAMED, "VoiceDesign": DESIGNED, "Base": CLONING}
    for task, speech in models.items():
        check_task(None, speech)
        check_task(task, speech)  # type: ignore[arg-type]  # one of its names
        with pytest.raises(ApiError, match=f"must be {task}"):
            check_task("Base" if task != "Base" else "CustomVoice", speech)


@pytest.mark.parametrize("instructions", [None, "", " \n"])
def test_a_voice_that_is_designed_must_be_described(instructions: str | None) -> None:
    check_instructions(instructions, NAMED)
    check_instructions("A deep voice.", DESIGNED)
    with pytest.raises(ApiError, match="must describe the voice") as caught:
        check_instructions(instructions, DESIGNED)
    assert caught.value.param == "instructions"
