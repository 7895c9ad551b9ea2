"""Which commands a stage takes, and its profiles."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.denoising.controlled import Controlled
from support.tiny_pipelines import result

from omnistage.stages.diffusion.control.control import ControlOptions
from omnistage.stages.worker.failure import RequestError

Make = Callable[..., Controlled]


def test_what_is_not_configured_says_so(controlled: Make, tmp_path: Path) -> None:
    commands = controlled("sd3").control.commands
    assert commands["sleep"] == commands["add_lora"] == ""
    assert commands["count_cache"] == "its engine has no embedding_cache_mb"
    assert commands["start_profile"] == "its engine has no profile_folder"
    assert commands["rpc"] == "its engine has no worker_extension_cls"
    options = {"embedding_cache_mb": 1, "profile_folder": str(tmp_path)}
    refused = {name for name, why in controlled("sd3", **options).control.commands.items() if why}
    assert refused == {"rpc"}


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"max_loras": 0}, "max_loras: must be an integer of at least 1"),
        ({"embedding_cache_mb": "1"}, "embedding_cache_mb: must be an integer of at least 0"),
    ],
)
def test_a_wrong_option_is_named(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ControlOptions.of(engine)


def test_a_profile_has_the_engine_s_work_in_it(controlled: Make, tmp_path: Path) -> None:
    one = controlled("qwen-image", profile_folder=str(tmp_path / "traces"))
    with pytest.raises(RequestError, match="no profile runs"):
        one.obey("stop_profile")
    begun = one.obey("start_profile", prefix="first")
    with pytest.raises(RequestError, match="runs already"):
        one.obey("start_profile", prefix=None)
    result(one.ask({}, 1))
    assert one.obey("stop_profile") == begun
    file = Path(begun["file"])
    assert file.name.startswith("first-")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert sum(event["name"] == "aten::scaled_dot_product_attention" for event in events) > 4
