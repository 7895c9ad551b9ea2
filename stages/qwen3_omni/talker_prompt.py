"""The talker's prompt: which thinker token, hidden row and codec id each of its rows is made of.

Math: Qwen3OmniMoeForConditionalGeneration.generate of transformers. The rows are the user segments
of the thinker's prompt, then nine for the last assistant header.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.stages.speech.columns import CODEC, POSITION, TEXT
from omnistage.stages.vllm.models.rope import Grid, rope_positions

HEADER = 3  # <|im_start|> assistant \n
NO_CODEC = -1
NO_TEXT = -1


@dataclass(frozen=True, slots=True)
class SpeechIds:
    """The ids of a checkpoint that a talker's prompt is built with."""

    im_start: int
    user: int
    assistant: int
    media: tuple[int, ...]
    tts_pad: int
    tts_bos: int
    tts_eos: int
    codec_header: tuple[int, int, int]  # nothink, think_bos, think_eos
    codec_pad: int
    codec_bos: int
    codec_eos: int
    speakers: dict[str, int]

    @classmethod
    def of(cls, config: Any) -> "SpeechIds":
        """From a Qwen3OmniMoeConfig."""
        talker = config.talker_config
        return cls(
            im_start=config.im_start_token_id,
            user=config.user_token_id,
            assistant=config.assistant_token_id,
            media=media_ids(config),
            tts_pad=config.tts_pad_token_id,
            tts_bos=config.tts_bos_token_id,
            tts_eos=config.tts_eos_token_id,
            codec_header=(
                talker.codec_nothink_id,
                talker.codec_think_bos_id,
                talker.codec_think_eos_id,
            ),
            codec_pad=talker.codec_pad_id,
            codec_bos=talker.codec_bos_id,
            codec_eos=talker.codec_eos_token_id,
            speakers={name.lower(): int(row) for name, row in talker.speaker_id.items()},
        )


def media_ids(config: Any) -> tuple[int, ...]:
    """The tokens that stand for sounds, images and videos."""
    thinker = config.thinker_config
    return (thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id)


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """Rows of the prompt; the text of the last one is the first token that is spoken.

    `text`, `codec` int32 [n] (-1: none), `positions` int64 [3, n]; rows `hidden_positions` take the
    hidden states of thinker positions `hidden_sources`. `lead`: tokens of the thinker's prompt that
    come after the assistant header and are spoken first.
    """

    text: npt.NDArray[np.int32]
    codec: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    hidden_positions: npt.NDArray[np.int32]
    hidden_sources: npt.NDArray[np.int32]
    lead: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.text)

    @property
    def position_delta(self) -> int:
        """Returns what a decode position adds to its index."""
        return int(self.positions.max()) + 1 - len(self)

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of the talker's tokens, by their names."""
        return {TEXT: self.text, CODEC: self.codec, POSITION: self.positions.T}


def talker_prompt(
    ids: SpeechIds, prompt_ids: Sequence[int], grids: Sequence[Grid], speaker: str
) -> TalkerPrompt:
    """Build the prompt; raises ValueError when the thinker's has no assistant header."""
    prompt = np.asarray(prompt_ids, np.int32)
    indices = np.arange(len(prompt))
    starts = np.where(prompt == ids.im_start, indices, -1)
    segment = np.maximum.accumulate(starts).clip(0)
    roles = prompt[(segment + 1).clip(max=len(prompt) - 1)]
    kept = np.flatnonzero(roles == ids.user)
    headers = np.flatnonzero((prompt[:-1] == ids.im_start) & (prompt[1:] == ids.assistant))
    if len(headers) == 0:
        raise ValueError("the prompt has no assistant header to speak after")
    header = prompt[headers[-1] : headers[-1] + HEADER]
    lead = prompt[headers[-1] + HEADER :]
    assistant = [*header, *[ids.tts_pad] * 4, ids.tts_bos, NO_TEXT]
    codec_track = [
        *[NO_CODEC] * HEADER,
        *ids.codec_header,
        ids.speakers[speaker.lower()],
        ids.codec_pad,
        ids.codec_bos,
    ]
    is_media = np.isin(prompt[kept], ids.media)
    text = np.concatenate([np.where(is_media, NO_TEXT, prompt[kept]), assistant])
    codec = np.concatenate([np.full(len(kept), NO_CODEC), codec_track])
    own_grids = [
        replace(grid, offset=int(np.searchsorted(kept, grid.offset)))
        for grid in grids
        if grid.offset in kept
    ]
    return TalkerPrompt(
        text.astype(np.int32),
        codec.astype(np.int32),
        rope_positions(len(text), _known_grids(own_grids)),
        np.flatnonzero(is_media).astype(np.int32),
        kept[is_media].astype(np.int32),
        tuple(lead.tolist()),
    )


def _known_grids(grids: Sequence[Grid]) -> list[Grid]:
    """Returns the grids that transformers' talker knows: others are text to it.

    Its `generate` does not tell the talker that videos are heard (`use_audio_in_video`). The talker
    finds such a video only on its way to an image that comes later.
    """
    images = [grid.offset for grid in grids if not grid.is_video]
    last_image = max(images, default=-1)
    return [grid for grid in grids if not grid.sounds or grid.offset < last_image]
