"""Numbers of control images, as a pipeline takes them."""

from typing import Any

import diffusers
import pytest

from omnistage.stages.diffusion.request.controls import CONTROLS, control_arguments
from omnistage.stages.worker.failure import RequestError

SCALE, START, END = CONTROLS


def pipeline(name: str, num_nets: int = 1) -> Any:
    made: Any = object.__new__(getattr(diffusers, name))
    if num_nets > 1:
        made.controlnet = type("Several", (), {"nets": [None] * num_nets})()
    return made


@pytest.mark.parametrize(
    ("name", "num_nets", "body", "made"),
    [
        ("FluxControlNetPipeline", 1, {SCALE: 0.5}, {SCALE: 0.5}),
        ("FluxControlNetPipeline", 1, {SCALE: [0.5], START: 0.1}, {SCALE: 0.5, START: 0.1}),
        (
            "FluxControlNetPipeline",
            2,
            {SCALE: 0.5, END: [0.1, 1]},
            {SCALE: [0.5] * 2, END: [0.1, 1]},
        ),
        ("StableDiffusionAdapterPipeline", 1, {SCALE: 2}, {"adapter_conditioning_scale": 2}),
        ("FluxPipeline", 1, {SCALE: None}, {}),
    ],
)
def test_a_number_is_that_of_each_net(
    name: str, num_nets: int, body: dict[str, Any], made: dict[str, Any]
) -> None:
    assert control_arguments(pipeline(name, num_nets), body) == made


@pytest.mark.parametrize(
    ("name", "num_nets", "body", "param"),
    [
        ("FluxPipeline", 1, {SCALE: 1}, SCALE),
        ("ZImageControlNetPipeline", 1, {START: 0}, START),
        ("FluxControlNetPipeline", 1, {SCALE: [1, 1]}, SCALE),
        ("FluxControlNetPipeline", 3, {END: [1, 1]}, END),
    ],
)
def test_a_number_too_many_or_for_nothing_is_a_400(
    name: str, num_nets: int, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        control_arguments(pipeline(name, num_nets), body)
    assert (refusal.value.status, refusal.value.param) == (400, param)
