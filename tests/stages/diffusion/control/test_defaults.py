"""What requests get that they do not ask for, where the operator has set it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tiny_pipelines import quiet

from omnistage.stage_configs.work import WorkBound
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.control.defaults import DefaultOptions
from omnistage.stages.diffusion.request.arguments import FIELDS

DEFAULTS = {"width": 128, "height": 64, "num_inference_steps": 10, "true_cfg_scale": 2.5}


@pytest.mark.parametrize(
    ("body", "has_image", "completed"),
    [
        ({}, False, DEFAULTS),
        ({"width": None, "height": 32}, False, {**DEFAULTS, "height": 32}),
        ({"num_inference_steps": 3}, False, {**DEFAULTS, "num_inference_steps": 3}),
        ({"quality": "low"}, False, {**DEFAULTS, "quality": "low", "num_inference_steps": 4}),
        ({"quality": "high"}, False, {**DEFAULTS, "quality": "high"}),
        ({"prompt": "x"}, True, {"prompt": "x", "num_inference_steps": 10, "true_cfg_scale": 2.5}),
    ],
)
def test_a_field_that_is_not_sent_has_the_default(
    body: dict[str, Any], has_image: bool, completed: dict[str, Any]
) -> None:
    assert DefaultOptions(DEFAULTS).completed(body, has_image=has_image) == completed


def test_without_defaults_a_body_and_a_bound_stay_as_they_are() -> None:
    body, bound = {"prompt": "x", "width": None}, WorkBound(width=512, steps=50)
    assert DefaultOptions().completed(body, has_image=False) == body
    assert DefaultOptions().applied(bound) == bound
    assert DefaultOptions().warm_up() == {}


def test_a_bound_is_judged_with_the_defaults() -> None:
    bound = DefaultOptions(DEFAULTS).applied(WorkBound(width=512, height=512, steps=50))
    assert (bound.width, bound.height, bound.steps, bound.num_frames) == (128, 64, 10, 1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("widht", 8, "defaults.widht: unknown; allowed: guidance_scale, height"),
        ("width", 0, "defaults.width: must be an integer above 0, not 0"),
        ("height", True, "defaults.height: must be an integer above 0, not True"),
        ("num_inference_steps", 2.5, "must be an integer above 0, not 2.5"),
        ("num_frames", "9", "must be an integer above 0, not '9'"),
        ("true_cfg_scale", "4", "defaults.true_cfg_scale: must be a number, not '4'"),
        ("negative_prompt", 1, "defaults.negative_prompt: must be a string, not 1"),
    ],
)
def test_a_wrong_default_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DefaultOptions({name: value})


def test_a_default_that_the_pipeline_does_not_take_is_refused() -> None:
    pipeline = quiet(make_tiny("qwen-image"))
    DefaultOptions(DEFAULTS).check(pipeline)
    with pytest.raises(
        ValueError, match=r"defaults\.num_frames: this pipeline takes no num_frames"
    ):
        DefaultOptions({"num_frames": 9}).check(pipeline)


def test_the_documented_defaults_are_options() -> None:
    text = (Path(__file__).parents[4] / "docs" / "diffusion.md").read_text()
    (line,) = re.findall(r"^    (engine: \{defaults.*\})$", text, re.MULTILINE)
    DefaultOptions.of(yaml.safe_load(line)["engine"])
    (sentence,) = re.findall(r"^Allowed are (.*), if the pipeline", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(FIELDS)
