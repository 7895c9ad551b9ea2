"""Feeds of a talker: its columns, options, and a clock for what is late."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.inprocess import InProcessConnector
from omnistage.stages.messages.edge import EDGE, Edge, Rows, StageTokens
from omnistage.stages.vllm.bridge import late_inputs, request_inputs
from omnistage.stages.vllm.bridge.late_inputs import LateInputs
from omnistage.stages.vllm.bridge.request_inputs import RequestInputs
from omnistage.stages.vllm.rows.row_store import RowStore
from omnistage.stages.vllm.step.request_options import (
    LatePrompt,
    late_input_options,
)
from omnistage.stages.vllm.step.step_schema import Column, ColumnLayout, RowInput, StepSchema

MAX_LEN = 40
END, PAD = 901, 902
COLUMNS = (
    Column("text", fed_by="tokens"),
    Column("codec"),
    Column("position", width=3, counts=True),
)
LAYOUT = ColumnLayout(COLUMNS)
SCHEMA = StepSchema(COLUMNS, RowInput(4))


def options(num_prompt: int = 6, hidden: tuple[int, ...] = (), **more: Any) -> LatePrompt:
    text, codec, *position = np.arange(num_prompt * 5).reshape(num_prompt, 5).T
    inputs = {"text": text, "codec": codec, "position": np.array(position).T}
    asked = late_input_options(
        "a",
        LAYOUT.pack(num_prompt, inputs),
        hidden_positions=np.array(hidden, np.int32),
        hidden_sources=np.array(hidden, np.int32) + 100,
        first_token_position=num_prompt - 1,
        position_delta=3,
        ends={"tokens": (END, PAD)},
        **more,
    )
    assert asked.late is not None
    return asked.late


def opened(**options_: Any) -> RequestInputs:
    store = RowStore(RowInput(4), torch.float32)
    return RequestInputs("a", options(**options_), LAYOUT, MAX_LEN, store)


def tokens(*values: int, last: bool = False) -> Chunk[Edge]:
    tensors = {"tokens": Tensor.from_numpy(np.array(values, np.int32))}
    return Chunk("a", StageTokens(), 0, tensors, last)


def rows(*sources: int) -> Chunk[Edge]:
    values = np.array([[source] * 4 for source in sources], np.float32).reshape(-1, 4)
    tensors = {
        "hidden": Tensor.from_numpy(values),
        "positions": Tensor.from_numpy(np.array(sources, np.int32)),
    }
    return Chunk("a", Rows(), 0, tensors)


class Clock:
    """The modules' own time.monotonic under a test's control; event loops keep theirs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (late_inputs, request_inputs):
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


class Feed:
    """Late inputs with a channel into them."""

    def __init__(self, directory: Path) -> None:
        connector = InProcessConnector(directory)
        connector.create("feed")
        self.sender = connector.sender("feed")
        self.late = LateInputs(
            [connector.receiver("feed", EDGE)], SCHEMA, torch.float32, MAX_LEN, 60, 10
        )

    def send(self, *chunks: Chunk[Edge]) -> None:
        for chunk in chunks:
            self.sender.send(chunk)
        self.late.collect()
