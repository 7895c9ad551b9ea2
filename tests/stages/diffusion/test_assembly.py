"""The engine arguments of a diffusion stage are checked before anything loads."""

from typing import Any

import pytest

from omnistage.stages.diffusion.assembly import StageOptions


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            {"steps": 3},
            "unknown engine argument steps; allowed: attention, call_defaults, compile",
        ),
        ({"dtype": "int8"}, "dtype 'int8' is none of float32"),
        ({"load_format": "pt"}, "load_format 'pt' is none of auto, default, dummy"),
        ({"offload": "disk"}, "offload 'disk' is none of sequential, layerwise"),
        ({"device": "tpu"}, "device 'tpu' is none of cpu, cuda"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not there"),
        ({"modules": {"dits": ["a"]}}, "unknown role 'dits'; allowed: dit, encoder"),
        ({"modules": {"dit": "transformer"}}, "modules.dit: must be a list"),
        ({"pipeline_class": "Pipe"}, "must be like my.module.Class"),
        ({"pipeline_class": "nowhere.Pipe"}, "No module named 'nowhere'"),
        ({"pipeline_class": "pathlib.Path"}, "has no from_pretrained"),
        ({"compile": "yes"}, "compile: must be true or false"),
        ({"compile": True, "offload": "layerwise"}, "compile: not with offload"),
    ],
)
def test_a_wrong_engine_argument_is_named(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StageOptions.of(engine)
