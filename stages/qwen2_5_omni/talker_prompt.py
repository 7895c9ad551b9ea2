"""The talker's prompt: what each of its positions is made of, and where the thinker's rows go.

Math: Qwen2_5OmniForConditionalGeneration.generate of transformers. The positions are those of the
thinker's prompt, one for the speaker's text token, one for the first row of the answer; the others
of the answer follow, one a decode step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.utils import cached_file

from omnistage.stages.qwen2_5_omni.positions import prompt_positions
from omnistage.stages.qwen2_5_omni.step_schema import TALKER_LAYOUT, TEXT
from omnistage.stages.speech.columns import POSITION
from omnistage.stages.vllm.models.rope import Grid
from omnistage.stages.vllm.step.request_options import RequestOptions, late_input_options

SPEAKERS = "spk_dict.pt"
NO_TEXT = -1
# Lines of the talker's text embeddings; the speakers' follow.
TEXT_END, TEXT_PAD = 0, 1


def speaker_tokens(model: str) -> dict[str, int]:
    """The text token of each speaker of a checkpoint, a folder or a hub name."""
    stored = torch.load(cached_file(model, SPEAKERS), map_location="cpu", weights_only=True)
    return {name.lower(): int(one["bos_token"]) for name, one in stored.items()}


@dataclass(frozen=True, slots=True)
class SpeechIds:
    """The ids of a checkpoint that a talker's prompt is built with."""

    codec_mask: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    text_end: int
    text_pad: int
    speakers: Mapping[str, int]

    @classmethod
    def of(cls, config: Any, speakers: Mapping[str, int]) -> "SpeechIds":
        """From a Qwen2_5OmniConfig, and the speakers' text tokens."""
        talker = config.talker_config
        return cls(
            codec_mask=talker.tts_codec_mask_token_id,
            codec_pad=talker.tts_codec_pad_token_id,
            codec_bos=talker.tts_codec_start_token_id,
            codec_eos=talker.tts_codec_end_token_id,
            text_end=talker.tts_text_end_token_id,
            text_pad=talker.tts_text_pad_token_id,
            speakers=speakers,
        )

    @property
    def ends(self) -> tuple[int, int]:
        """Returns what ends speech when it is sampled."""
        return self.codec_pad, self.codec_eos

    @property
    def text(self) -> tuple[int, ...]:
        """The thinker's tokens whose embeddings the talker has, in the order of its lines."""
        return self.text_end, self.text_pad, *sorted(set(self.speakers.values()))

    def voice_line(self, speaker: str) -> int:
        """The line of a speaker's text token."""
        return self.text.index(self.speakers[speaker], TEXT_PAD + 1)


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """`token_ids` of the talker's vocabulary, `text` int32 [n], `positions` int64 [3, n]."""

    token_ids: list[int]
    text: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def position_delta(self) -> int:
        """Returns what a decode position adds to its index."""
        return int(self.positions.max()) + 1 - len(self)

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of the talker's tokens, by their names."""
        return {TEXT: self.text, POSITION: self.positions.T}


def talker_prompt(
    ids: SpeechIds, num_prompt: int, grids: Sequence[Grid], speaker: str
) -> TalkerPrompt:
    """For a thinker's prompt of so many tokens.

    The token ids are the reference's, which its repetition penalty counts.
    """
    token_ids = [*[ids.codec_mask] * num_prompt, ids.codec_pad, ids.codec_bos]
    text = np.full(len(token_ids), NO_TEXT, np.int32)
    text[num_prompt] = ids.voice_line(speaker)
    return TalkerPrompt(token_ids, text, prompt_positions(len(token_ids), grids))


def request_options(request_id: str, prompt: TalkerPrompt) -> RequestOptions:
    """Returns what the talker's engine is told of a request: all of the thinker's rows will
    come.
    """
    num_prompt = len(prompt) - 2
    rows = np.arange(num_prompt, dtype=np.int32)
    return late_input_options(
        request_id,
        TALKER_LAYOUT.pack(len(prompt), prompt.inputs),
        hidden_positions=rows,
        hidden_sources=rows,
        following=(num_prompt, num_prompt + 1),
        position_delta=prompt.position_delta,
        ends={TEXT: (TEXT_END, TEXT_PAD)},
    )


def silent_options(request_id: str, prompt: TalkerPrompt) -> RequestOptions:
    """A request for which no rows come."""
    return late_input_options(
        request_id,
        TALKER_LAYOUT.pack(len(prompt), prompt.inputs),
        position_delta=prompt.position_delta,
        ends={TEXT: (TEXT_END, TEXT_PAD)},
    )
