"""The step schema of the talker: columns of the bridge to vLLM beside its tokens."""

from typing import Any

from omnistage.stages.speech.columns import CODEC, POSITION, TEXT
from omnistage.stages.vllm.step.step_schema import (
    Column,
    ColumnLayout,
    Export,
    RowInput,
    StepSchema,
)

# An id of the thinker's vocabulary and one of the talker's own (-1: none), and the three positions
# of M-RoPE, which lie apart where the prompt has images and videos.
TALKER_COLUMNS = (
    Column(TEXT, fed_by="tokens"),
    Column(CODEC),
    Column(POSITION, width=3, counts=True),
)
TALKER_LAYOUT = ColumnLayout(TALKER_COLUMNS)


def talker_schema(config: Any) -> StepSchema:
    """By the talker's own configuration: its media rows are the thinker's hidden states."""
    return StepSchema(
        TALKER_COLUMNS,
        RowInput(config.thinker_hidden_size),
        Export("codes", "frame", "int32"),
    )
