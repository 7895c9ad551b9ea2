"""Sleep: weights go away and come back, and the pictures are what they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.denoising.controlled import Controlled
from support.denoising.other_device import OTHER_CPU, places
from support.models.loras import write_lora
from support.tiny_pipelines import error, quiet, result

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.loading import weights as weights_module
from omnistage.stages.diffusion.loading.movable import pin
from omnistage.stages.diffusion.loading.other_weights import modules_of
from omnistage.stages.diffusion.loading.weights import Weights, tensors_of, weights_of
from omnistage.stages.worker.failure import RequestError

Make = Callable[..., Controlled]
PARTS = ["text_encoder", "transformer", "vae"]


def num_weights(one: Controlled, part: str) -> int:
    return sum(weight.numel() for weight in getattr(one.pipeline, part).parameters())


def other_pipeline(folder: Path) -> Any:
    """One with other weights, and its folder."""
    pipeline = quiet(make_tiny("qwen-image", seed=5))
    pipeline.save_pretrained(folder)
    return pipeline


@pytest.mark.parametrize("level", [1, 2])
def test_what_slept_elsewhere_makes_the_same_pictures(
    level: int, controlled: Make, far_host: None
) -> None:
    one = controlled("qwen-image")
    before = num_weights(one, "transformer")
    homes = places(one.pipeline.transformer.parameters())
    assert one.obey("sleep", level=level, tags=None) == {"asleep": PARTS}
    assert num_weights(one, "transformer") == (0 if level == 2 else before)
    assert not set(places(one.pipeline.transformer.parameters())) & set(homes)
    assert one.obey("wake", tags=None) == {"asleep": []}
    assert num_weights(one, "transformer") == before
    assert error(result(one.ask({}, 1)), one.expected(1)) < 1e-6


def test_tensors_on_the_host_are_as_they_were() -> None:
    tensors = [torch.randn(3, 5), torch.arange(7), torch.randn(2, 2, 2).bfloat16(), torch.ones(())]
    before = [tensor.clone() for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors]
    pin(tensors)
    assert all(map(torch.equal, tensors, before))
    assert all(tensor.data_ptr() not in addresses for tensor in tensors)


def test_parts_sleep_and_wake_by_tag(controlled: Make) -> None:
    one = controlled("qwen-image")
    assert one.obey("sleep", level=2, tags=["vae", "text_encoder"]) == {
        "asleep": ["text_encoder", "vae"]
    }
    assert num_weights(one, "transformer") > 0
    assert one.obey("wake", tags=["vae"]) == {"asleep": ["text_encoder"]}
    assert one.obey("sleep", level=1, tags=["weights"]) == {"asleep": PARTS}
    assert one.obey("wake", tags=["weights"]) == {"asleep": []}
    assert error(result(one.ask({}, 1)), one.expected(1)) < 1e-6
    with pytest.raises(RequestError, match="no part 'kv_cache'; allowed: weights, ") as caught:
        one.obey("wake", tags=["kv_cache"])
    assert caught.value.param == "tags"


@pytest.mark.parametrize("level", [0, 1, 2])
def test_other_weights_are_loaded_awake_or_asleep(
    level: int, controlled: Make, tmp_path: Path
) -> None:
    one = controlled("qwen-image")
    other = other_pipeline(tmp_path)
    if level:
        one.obey("sleep", level=level, tags=None)
    asleep = PARTS if level else []
    assert one.obey("load_weights", path=str(tmp_path)) == {"asleep": asleep}
    one.obey("wake", tags=None)
    expected = one.picture_of(other, 1)
    assert error(result(one.ask({}, 1)), expected) < 1e-6
    assert error(expected, one.expected(1)) > 1e-3


def test_weights_that_do_not_fit_change_nothing(controlled: Make, tmp_path: Path) -> None:
    one = controlled("flux")
    other_pipeline(tmp_path)
    with pytest.raises(RequestError, match="the folder does not fit") as caught:
        one.obey("load_weights", path=str(tmp_path))
    assert (caught.value.status, caught.value.param) == (400, "path")
    with pytest.raises(RequestError, match="cannot be read"):
        one.obey("load_weights", path=str(tmp_path / "nothing"))
    assert error(result(one.ask({}, 1)), one.expected(1)) < 1e-6


def test_adapters_sleep_too(controlled: Make, tmp_path: Path) -> None:
    one = controlled("qwen-image")
    file = write_lora(make_tiny("qwen-image"), tmp_path, 1)
    one.obey("add_lora", name="ink", path=str(file), weight_name=None, pinned=False)
    body = {"lora": [{"name": "ink", "scale": 1.0}]}
    before = result(one.ask(body, 1))
    one.obey("sleep", level=2, tags=None)
    with pytest.raises(RequestError, match="asleep") as caught:
        one.obey("remove_lora", name="ink")
    assert caught.value.status == 409
    one.obey("wake", tags=None)
    assert error(result(one.ask(body, 1)), before) < 1e-6
    assert error(result(one.ask({}, 1)), one.expected(1)) < 1e-6


def test_a_part_that_sleeps_leaves_the_others_on_their_devices() -> None:
    """On the meta device, the only other one that every machine has; torch moves nothing off it."""
    pipeline = make_tiny("qwen-image")
    with torch.device("meta"):
        pipeline.vae = make_tiny("qwen-image").vae
    weights = Weights(pipeline, lambda folder: make_tiny("qwen-image"))
    parts = modules_of(pipeline)
    homes = {"text_encoder": {"cpu"}, "transformer": {"cpu"}, "vae": {"meta"}}
    assert {name: devices(part) for name, part in parts.items()} == homes
    before = [weight.clone() for weight in pipeline.transformer.parameters()]
    weights.sleep(2, ["transformer"])
    assert not any(weight.numel() for _, weight in weights_of(pipeline.transformer))
    assert devices(pipeline.vae) == {"meta"}
    assert all(weight.numel() for _, weight in weights_of(pipeline.vae))
    weights.wake(None)
    assert {name: devices(part) for name, part in parts.items()} == homes
    assert all(map(torch.equal, pipeline.transformer.parameters(), before))


@pytest.fixture
def far_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device that the weights are on is not the host, though it is a CPU too."""
    monkeypatch.setattr(weights_module, "HOST", OTHER_CPU)


def test_kept_weights_lie_in_the_hosts_memory_with_their_values(far_host: None) -> None:
    pipeline = make_tiny("qwen-image")
    weights = Weights(pipeline, lambda folder: pytest.fail("nothing is read again"))
    tensors = [tensor for part in modules_of(pipeline).values() for tensor in tensors_of(part)]
    before, homes = [tensor.clone() for tensor in tensors], places(tensors)
    weights.sleep(1, None)
    assert not set(places(tensors)) & set(homes)
    pieces = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert len(pieces) == len(PARTS)  # each part in one piece of page-locked memory
    weights.wake(None)
    assert all(map(torch.equal, tensors, before))


def devices(part: torch.nn.Module) -> set[str]:
    return {tensor.device.type for tensor in tensors_of(part)}
