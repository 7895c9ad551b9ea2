"""A step of a talker that speaks in codec frames, without its engine."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from omnistage.stages.speech.frame_talker import FrameTalker
from omnistage.stages.vllm import step
from omnistage.stages.vllm.step_schema import NO_FRAME

CODEC_EOS = 9


class Talker(FrameTalker):
    """Of no family."""

    def header_inputs(self, columns: torch.Tensor) -> torch.Tensor:
        return columns

    def project_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def test_a_decode_that_is_fed_the_end_of_speech_has_no_frame() -> None:
    """The others' codes are stored at their lines."""
    talker: Any = Talker.__new__(Talker)
    nn.Module.__init__(talker)
    talker.table = SimpleNamespace(num_decodes=2)
    talker.codec_eos = CODEC_EOS
    talker.suppressed = torch.zeros(12, dtype=torch.bool)
    talker.codes = torch.zeros(4, 2, dtype=torch.int32)
    talker._predictor_arguments = lambda rows, code0, frame: {"code0": code0}
    talker._predictor_graphs = lambda code0: (
        torch.stack([code0, code0 + 1], 1),
        torch.ones(len(code0), 3),
    )
    columns = torch.zeros(3, step.NUM_OWN, dtype=torch.int32)
    columns[:, step.FRAME] = torch.tensor([5, -1, 7])
    inputs, ids = torch.zeros(3, 3), torch.tensor([CODEC_EOS, CODEC_EOS, 4])
    talker._add_frames(inputs, ids, columns, torch.tensor([1, 2, 3]))
    assert talker.codes.tolist() == [[0, 0], [NO_FRAME, NO_FRAME], [0, 0], [4, 5]]
    assert inputs[:, 0].tolist() == [1, 0, 1]
