"""The talker's prompt: which text token and which codec id or frame each of its rows is made of.

Math: Qwen3TTSForConditionalGeneration.generate of qwen-tts. The instructions come first, then the
role, then a header in which the codec track says the language and the voice. The text is laid over
the codec track in one of two ways: one token a step, from the row on that begins the speech; or as
a whole before that row. The frames of a reference sound follow the row that begins the speech, as
if they had been spoken, and the words of the sound come before the text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stages.qwen3_tts.step_schema import FRAME, NONE
from omnistage.stages.speech.columns import CODEC, POSITION, TEXT

Ints = npt.NDArray[np.int32]

AUTO = "auto"
DIALECT = "dialect"  # in the names of languages that only speakers choose
NO_DIALECT_IN = (AUTO, "chinese")  # languages for which a speaker's dialect is taken instead


@dataclass(frozen=True, slots=True)
class SpeechIds:
    """The ids of a checkpoint that a talker's prompt is built with."""

    im_start: int
    im_end: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    nothink: int
    think: int
    think_bos: int
    think_eos: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # of speakers that have one
    languages: Mapping[str, int]

    @classmethod
    def of(cls, config: Any) -> "SpeechIds":
        """From a Qwen3TTSConfig."""
        talker = config.talker_config
        dialects = talker.get("spk_is_dialect") or {}
        return cls(
            im_start=config.im_start_token_id,
            im_end=config.im_end_token_id,
            tts_pad=config.tts_pad_token_id,
            tts_bos=config.tts_bos_token_id,
            tts_eos=config.tts_eos_token_id,
            nothink=talker["codec_nothink_id"],
            think=talker["codec_think_id"],
            think_bos=talker["codec_think_bos_id"],
            think_eos=talker["codec_think_eos_id"],
            codec_pad=talker["codec_pad_id"],
            codec_bos=talker["codec_bos_id"],
            codec_eos=talker["codec_eos_token_id"],
            speakers=_lower(talker.get("spk_id") or {}),
            dialects={name: dialect for name, dialect in _lower(dialects).items() if dialect},
            languages=_lower(talker.get("codec_language_id") or {}),
        )

    @property
    def named_languages(self) -> list[str]:
        """Returns the languages that requests may name, beside `auto`, which leaves it to the
        model.
        """
        return sorted(name for name in self.languages if DIALECT not in name)

    def language(self, name: str, speaker: str) -> int | None:
        """The id of what is spoken; raises KeyError for a language that is not named."""
        dialect = self.dialects.get(speaker)
        if dialect is not None and name in NO_DIALECT_IN:
            return self.languages[dialect]
        return None if name == AUTO else self.languages[name]


def _lower(values: JsonMap) -> Json:
    return {name.lower(): value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class SpokenText:
    """Token ids: how to speak, the role, what the reference sound says, and what is spoken."""

    role: Sequence[int]
    text: Sequence[int]
    instructions: Sequence[int] = ()
    reference: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TalkerVoice:
    """Who speaks: a codec id, or nobody; and a sound's frames [n, codebooks] to go on from."""

    speaker: int | None = None
    frames: Ints | None = None

    @property
    def num_frames(self) -> int:
        """Returns the frames of the audio."""
        return 0 if self.frames is None else len(self.frames)


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """Rows of the prompt, and the text that is laid from row `first_text` on.

    `text`, `codec` int32 [n] (-1: none), `frames` int32 [n, codebooks] or None. `spoken` are the
    tokens that are laid, one a row, also behind the prompt; then comes the first of `ends`, then
    the second for ever.
    """

    text: Ints
    codec: Ints
    frames: Ints | None
    first_text: int
    spoken: tuple[int, ...]
    ends: tuple[int, int]

    def __len__(self) -> int:
        return len(self.text)

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of the talker's tokens, by their names."""
        frames = {} if self.frames is None else {FRAME: self.frames}
        positions = np.arange(len(self), dtype=np.int32)
        return {TEXT: self.text, CODEC: self.codec, POSITION: positions, **frames}


def talker_prompt(
    ids: SpeechIds, text: SpokenText, voice: TalkerVoice, language: int | None, is_whole: bool
) -> TalkerPrompt:
    """Build the prompt; `is_whole`: all of the text comes before the speech begins."""
    rows = _header(ids, text, voice, language)
    words = [*text.reference, *text.text]
    if is_whole:
        rows += [(token, ids.codec_pad) for token in (*words, ids.tts_eos)]
    first_text = len(rows)
    under_speech = ids.tts_pad if is_whole else NONE
    rows.append((under_speech, ids.codec_bos))
    rows += [(under_speech, NONE)] * voice.num_frames
    table = np.asarray(rows, np.int32)
    return TalkerPrompt(
        table[:, 0],
        table[:, 1],
        _frames(len(rows), voice),
        first_text=len(rows) if is_whole else first_text,
        spoken=() if is_whole else tuple(words),
        ends=(ids.tts_pad if is_whole else ids.tts_eos, ids.tts_pad),
    )


def _header(
    ids: SpeechIds, text: SpokenText, voice: TalkerVoice, language: int | None
) -> list[tuple[int, int]]:
    """Rows of text and codec ids: all before the text is laid."""
    opened = [ids.nothink] if language is None else [ids.think]
    told = [] if language is None else [language]
    speaker = [] if voice.speaker is None else [voice.speaker]
    track = [*opened, ids.think_bos, *told, ids.think_eos, *speaker]
    return [
        *((token, NONE) for token in (*text.instructions, *text.role)),
        *((ids.tts_pad, code) for code in track),
        (ids.tts_bos, ids.codec_pad),
    ]


def _frames(num_rows: int, voice: TalkerVoice) -> Ints | None:
    """The sound's frames at the last rows."""
    if voice.frames is None:
        return None
    frames = np.full((num_rows, voice.frames.shape[1]), NONE, np.int32)
    frames[num_rows - voice.num_frames :] = voice.frames
    return frames
