"""Engine options of other arguments: what requests may give, and what every call has."""

import re
from pathlib import Path
from typing import Any

import diffusers
import pytest
import yaml
from support.denoising.extra_arguments import refusal

from omnistage.stages.diffusion.control.extra import ExtraOptions
from omnistage.stages.diffusion.request.task_classes import classes_over


def test_the_graph_file_names_what_requests_may_give(sd3: Any) -> None:
    allowed = {"extra": ["clip_skip", "prompt_2"]}
    assert ExtraOptions.of(allowed).arguments(sd3, {"clip_skip": 1}) == {"clip_skip": 1}
    error = refusal(sd3, {"sigmas": [1.0]}, **allowed)
    assert error.message == (
        "extra.sigmas: this server takes clip_skip, prompt_2 only (engine.extra)"
    )
    error = refusal(sd3, {"clip_skip": 1}, extra=False)
    assert error.message == "extra.clip_skip: this server takes no other arguments (engine.extra)"


def test_defaults_of_the_graph_file_are_in_every_call_and_requests_win(sd3: Any) -> None:
    options = ExtraOptions(call_defaults={"max_sequence_length": 128, "clip_skip": 1})
    assert options.arguments(sd3, None) == {"max_sequence_length": 128, "clip_skip": 1}
    given = {"max_sequence_length": 64, "clip_skip": None}
    assert options.arguments(sd3, given) == {"max_sequence_length": 64, "clip_skip": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra": "all"}, "extra: must be true, false or a list of arguments, not 'all'"),
        ({"extra": [1]}, "extra: must be true, false or a list"),
        (
            {"extra": ["clip_skp"]},
            r"extra\.clip_skp: this pipeline takes no clip_skp; did you mean",
        ),
        ({"extra": ["latents"]}, r"extra\.latents: is not for requests"),
        ({"call_defaults": [1]}, "call_defaults: must be a mapping"),
        ({"call_defaults": {"sigmas": 1}}, r"call_defaults\.sigmas: must be a list"),
        ({"call_defaults": {"generator": 1}}, r"call_defaults\.generator: is not for requests"),
    ],
)
def test_a_graph_file_is_refused_for_what_no_class_over_the_weights_takes(
    options: dict[str, Any], message: str
) -> None:
    classes = classes_over(diffusers.StableDiffusion3Pipeline)
    assert diffusers.StableDiffusion3InpaintPipeline in classes
    with pytest.raises(ValueError, match=message):
        ExtraOptions.of(options).check(classes)
    ExtraOptions.of({"extra": ["padding_mask_crop", "clip_skip"]}).check(classes)


def test_the_documented_options_are_of_the_pipelines_call(sd3: Any) -> None:
    text = (Path(__file__).parents[4] / "docs" / "diffusion.md").read_text()
    (line,) = re.findall(r"^    (engine: \{extra.*\})$", text, re.MULTILINE)
    options = ExtraOptions.of(yaml.safe_load(line)["engine"])
    options.check([sd3])
    assert options.arguments(sd3, {"prompt_2": "a"}) == {
        "max_sequence_length": 256,
        "prompt_2": "a",
    }
