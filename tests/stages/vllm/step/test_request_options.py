"""A request's options, from the stage to its engine's process."""

from typing import Any

import numpy as np
import pytest
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from omnistage.stages.messages.edge import Rows
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.step.request_options import (
    CodeSampling,
    ExportedRows,
    RequestOptions,
    late_input_options,
)

LATE = late_input_options(
    "a",
    np.arange(6, dtype=np.int32).reshape(3, 2),
    hidden_positions=np.array([1], np.int32),
    hidden_sources=np.array([4], np.int32),
    following=(5, 2),
    ends={"tokens": (1, 2)},
    fed={"pitch": [0.5], "tokens": [7]},
    complete=True,
).late


@pytest.mark.parametrize(
    "options",
    [
        RequestOptions("a"),
        RequestOptions("a", to=[], exported=ExportedRows()),
        RequestOptions("a", to=["b"], exported=ExportedRows(first=0), rows=Rows("prompt", 3)),
        RequestOptions("a", exported=ExportedRows(ids=[])),
        RequestOptions(
            "a", late=LATE, sampling=CodeSampling(0.5, 0, 1.0, 9), model={"voice": b"\x00\xff"}
        ),
    ],
)
def test_options_reach_the_engine_as_they_were_written(options: RequestOptions) -> None:
    """The way of vLLM's own: parameters are encoded for the process of the engine."""
    params = SamplingParams(extra_args=options.extra_args())
    sent = MsgpackDecoder(SamplingParams).decode(MsgpackEncoder().encode(params))
    assert RequestOptions.of(sent) == options


@pytest.mark.parametrize("extra_args", [None, {}, {"other": 1}, {"omnistage": {"id": "a"}}])
def test_a_request_without_options_of_the_bridge_has_none(extra_args: Any) -> None:
    assert RequestOptions.of(SamplingParams(extra_args=extra_args)) is None


def test_a_pooling_request_has_none() -> None:
    assert RequestOptions.of(None) is None
