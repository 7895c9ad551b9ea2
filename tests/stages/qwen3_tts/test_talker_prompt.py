"""The rows of the talker's prompt."""

import numpy as np
import pytest

from omnistage.stages.qwen3_tts.step_schema import FRAME, NONE, VOICE
from omnistage.stages.qwen3_tts.talker_prompt import (
    SpeechIds,
    SpokenText,
    TalkerPrompt,
    TalkerVoice,
    talker_prompt,
)

IDS = SpeechIds(
    im_start=100,
    im_end=101,
    tts_pad=102,
    tts_bos=103,
    tts_eos=104,
    nothink=1,
    think=2,
    think_bos=3,
    think_eos=4,
    codec_pad=5,
    codec_bos=6,
    codec_eos=7,
    speakers={"ryan": 8, "eric": 9},
    dialects={"eric": "sichuan_dialect"},
    languages={"chinese": 20, "english": 21, "sichuan_dialect": 22},
)
PAD, BOS, EOS = IDS.tts_pad, IDS.tts_bos, IDS.tts_eos
ROLE = [(50, NONE), (51, NONE), (52, NONE)]
FRAMES = np.array([[30, 31], [32, 33]], np.int32)


def prompt(
    voice: TalkerVoice, *, is_whole: bool, language: int | None = None, **text: list[int]
) -> TalkerPrompt:
    words = SpokenText(role=[50, 51, 52], **{"text": [60, 61], **text})
    return talker_prompt(IDS, words, voice, language, is_whole)


def rows(made: TalkerPrompt) -> list[tuple[int, int]]:
    return list(zip(made.text.tolist(), made.codec.tolist(), strict=True))


def test_a_whole_text_comes_before_the_speech() -> None:
    made = prompt(TalkerVoice(8), is_whole=True)
    header = [(PAD, 1), (PAD, 3), (PAD, 4), (PAD, 8), (BOS, 5)]
    assert rows(made) == [*ROLE, *header, (60, 5), (61, 5), (EOS, 5), (PAD, 6)]
    assert (made.first_text, made.spoken, made.ends) == (len(made), (), (PAD, PAD))


def test_a_streamed_text_is_laid_from_the_row_that_begins_the_speech() -> None:
    made = prompt(TalkerVoice(8), is_whole=False)
    assert rows(made)[-1] == (NONE, 6)
    assert (made.first_text, made.spoken, made.ends) == (len(made) - 1, (60, 61), (EOS, PAD))


def test_instructions_come_first_and_a_language_is_thought_of() -> None:
    made = prompt(TalkerVoice(8), is_whole=False, language=21, instructions=[40, 41])
    header = [(PAD, 2), (PAD, 3), (PAD, 21), (PAD, 4), (PAD, 8), (BOS, 5)]
    assert rows(made) == [(40, NONE), (41, NONE), *ROLE, *header, (NONE, 6)]


def test_nobody_speaks_without_a_speaker() -> None:
    made = prompt(TalkerVoice(), is_whole=False)
    assert rows(made) == [*ROLE, (PAD, 1), (PAD, 3), (PAD, 4), (BOS, 5), (NONE, 6)]
    assert made.frames is None
    assert FRAME not in made.inputs


def test_a_streamed_text_is_laid_over_the_frames_of_a_sound() -> None:
    made = prompt(TalkerVoice(VOICE, FRAMES), is_whole=False, reference=[70])
    assert rows(made)[-4:] == [(BOS, 5), (NONE, 6), (NONE, NONE), (NONE, NONE)]
    assert made.first_text == len(made) - 3
    assert made.spoken == (70, 60, 61)
    assert made.frames is not None
    assert made.frames.tolist() == [[NONE, NONE]] * (len(made) - 2) + FRAMES.tolist()


def test_the_frames_of_a_sound_follow_a_whole_text() -> None:
    made = prompt(TalkerVoice(VOICE, FRAMES), is_whole=True, reference=[70])
    words = [(70, 5), (60, 5), (61, 5), (EOS, 5)]
    assert rows(made)[-7:] == [*words, (PAD, 6), (PAD, NONE), (PAD, NONE)]
    assert made.frames is not None
    assert made.frames[-2:].tolist() == FRAMES.tolist()


@pytest.mark.parametrize(
    ("name", "speaker", "expected"),
    [
        ("auto", "ryan", None),
        ("english", "ryan", 21),
        ("auto", "eric", 22),
        ("chinese", "eric", 22),
        ("english", "eric", 21),
        ("auto", "", None),
    ],
)
def test_a_speakers_dialect_is_taken_for_no_language_and_for_chinese(
    name: str, speaker: str, expected: int | None
) -> None:
    assert IDS.language(name, speaker) == expected


def test_dialects_cannot_be_asked_for() -> None:
    assert IDS.named_languages == ["chinese", "english"]
