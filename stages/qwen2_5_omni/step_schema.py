"""The step schema of the talker: columns of the bridge to vLLM beside its tokens."""

from typing import Any

from omnistage.stages.speech.columns import POSITION
from omnistage.stages.vllm.step.step_schema import (
    Column,
    ColumnLayout,
    Export,
    RowInput,
    StepSchema,
)

TEXT = "text"

# A line of the talker's few text embeddings (-1: none), and the three positions of M-RoPE, which
# lie apart where the prompt has images and videos.
TALKER_COLUMNS = (
    Column(TEXT, after_rows=True),
    Column(POSITION, width=3, counts=True),
)
TALKER_LAYOUT = ColumnLayout(TALKER_COLUMNS)


def talker_schema(config: Any) -> StepSchema:
    """By the talker's own configuration: its rows are as wide as the thinker's hidden states."""
    return StepSchema(
        TALKER_COLUMNS,
        RowInput(config.embedding_size),
        Export("codes", "frame", "int32"),
    )
