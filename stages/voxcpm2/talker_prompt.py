"""The talker's prompt: which text token or which patch of a reference sound each row is made of.

Math: VoxCPM2Model._generate of voxcpm. A sound without words stands in front of the text, between
marks of its own. One whose words are known is gone on from: its words are the text's beginning, and
it stands behind the mark that begins the speech.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.stages.speech.columns import TEXT
from omnistage.stages.voxcpm2.step_schema import AUDIO

AUDIO_START, REFERENCE_START, REFERENCE_END = 101, 103, 104  # of every checkpoint; no config has it
NONE = -1  # in both columns

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """Rows of the prompt: `text` and `audio` int32 [n], of which each row has one."""

    text: Ints
    audio: Ints

    def __len__(self) -> int:
        return len(self.text)

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of the talker's tokens, by their names."""
        return {TEXT: self.text, AUDIO: self.audio}


def talker_prompt(text: Sequence[int], num_patches: int, continues: bool) -> TalkerPrompt:
    """Build the prompt of a text's tokens and of so many patches of a reference sound."""
    patches = [(NONE, number) for number in range(num_patches)]
    speech = [*((token, NONE) for token in text), (AUDIO_START, NONE)]
    if continues:
        rows = [*speech, *patches]
    elif patches:
        rows = [(REFERENCE_START, NONE), *patches, (REFERENCE_END, NONE), *speech]
    else:
        rows = speech
    table = np.asarray(rows, np.int32)
    return TalkerPrompt(table[:, 0], table[:, 1])
