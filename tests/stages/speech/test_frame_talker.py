"""A step of a talker that speaks in codec frames, without its engine."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from omnistage.stages.speech import frame_talker
from omnistage.stages.speech.frame_talker import FrameTalker
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.step_schema import NO_FRAME

CODEC_EOS = 9


class Talker(FrameTalker):
    """Of no family."""

    def header_inputs(self, columns: torch.Tensor) -> torch.Tensor:
        return columns

    def project_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def make_talker(num_decodes: int, num_rows: int) -> Any:
    """Whose predictor gives frames of ones, and code 0 and the number behind it."""
    talker: Any = Talker.__new__(Talker)
    nn.Module.__init__(talker)
    talker.table = SimpleNamespace(num_decodes=num_decodes, num_rows=num_rows)
    talker.codec_eos = CODEC_EOS
    talker.suppressed = torch.zeros(12, dtype=torch.bool)
    talker.codes = torch.zeros(4, 2, dtype=torch.int32)
    talker._predictor_arguments = lambda rows, code0, frame: {"code0": code0}

    def predict(code0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([code0, code0 + 1], 1), torch.ones(len(code0), 3)

    talker.code_predictor, talker._predictor_graphs = (
        Mock(side_effect=predict),
        Mock(side_effect=predict),
    )
    return talker


def columns_of(*frames: int) -> torch.Tensor:
    columns = torch.zeros(len(frames), step.NUM_OWN, dtype=torch.int32)
    columns[:, step.FRAME] = torch.tensor(frames)
    return columns


def test_a_decode_that_is_fed_the_end_of_speech_has_no_frame() -> None:
    """The others' codes are stored at their lines."""
    talker = make_talker(num_decodes=2, num_rows=8)
    inputs, ids = torch.zeros(3, 3), torch.tensor([CODEC_EOS, CODEC_EOS, 4])
    talker._add_frames(inputs, ids, columns_of(5, -1, 7), torch.tensor([1, 2, 3]))
    assert talker.codes.tolist() == [[0, 0], [NO_FRAME, NO_FRAME], [0, 0], [4, 5]]
    assert inputs[:, 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("num_rows", [2, 8])
def test_a_graph_that_is_recorded_serves_batches_of_prompts_and_of_decodes(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes as many frames as requests may decode, whatever it is recorded with."""
    monkeypatch.setattr(frame_talker, "is_recorded", lambda inputs: True)
    talker = make_talker(num_decodes=0, num_rows=num_rows)
    inputs, ids = torch.zeros(5, 3), torch.tensor([3, 2, 4, 0, 0])
    talker._add_frames(inputs, ids, columns_of(5, -1, 7, -1, -1), torch.tensor([1, 2, 3, 0, 0]))
    (call,) = talker.code_predictor.mock_calls
    assert len(call.kwargs["code0"]) == min(5, num_rows)
    assert talker._predictor_graphs.mock_calls == []
    assert talker.codes[[1, 3]].tolist() == [[3, 4], [4, 5]]
    assert inputs[:, 0].tolist() == [1, 0, 1, 0, 0]
