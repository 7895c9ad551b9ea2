"""Denoisers whose weights and products are float8."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.denoising.begun_together import begin_together
from support.denoising.controlled import Controlled
from torch import nn

from omnistage.stages.diffusion.blocks.float8 import FLOAT8, Float8Linear
from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.loading.float8 import ALIGNMENT, quantize
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.worker.failure import RequestError

Make = Callable[..., Controlled]
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float8")
    for name in ("qwen-image", "sd3", "wan"):
        write_tiny(name, path / name)
    return path


def picture(pipeline: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    size = {"height": 32, "width": 32, "num_inference_steps": 4, "output_type": "pt"}
    with torch.inference_mode():
        images: torch.Tensor = pipeline(prompt="a cat", generator=generator, **size).images
    return images.float()


def test_a_pictures_blocks_are_float8_and_what_is_around_them_is_not(folder: Path) -> None:
    exact = LoadOptions().load(str(folder / "qwen-image"))
    loaded = LoadOptions(quantization="fp8").load(str(folder / "qwen-image"))
    assert (exact.is_quantized, loaded.is_quantized) == (False, True)
    transformer = loaded.pipeline.transformer
    assert loaded.dtype == transformer.dtype == torch.float32
    assert not any(one.dtype == FLOAT8 for one in transformer.parameters())
    blocks = list(transformer.transformer_blocks.modules())
    assert not any(type(one) is nn.Linear for one in blocks)
    assert all(one.weight.dtype == FLOAT8 for one in blocks if isinstance(one, Float8Linear))
    assert type(transformer.img_in) is type(transformer.proj_out) is nn.Linear
    away = (picture(loaded.pipeline) - picture(exact.pipeline)).abs().mean()
    assert 0 < away < 0.02


def test_a_denoiser_that_has_nothing_to_quantize_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"transformer \(SD3Transformer2DModel\) has no repeated"):
        LoadOptions(quantization="fp8").load(str(folder / "sd3"))
    with pytest.raises(ValueError, match=f"has sizes that are multiples of {ALIGNMENT}"):
        LoadOptions(quantization="fp8").load(str(folder / "wan"))


def test_a_gpu_without_such_products_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = LoadOptions().load(str(folder / "qwen-image")).parts
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ValueError, match=r"compute capability 8\.9, not 8\.6"):
        quantize(parts, torch.device("cuda"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int4"}, "quantization 'int4' is none of fp8"),
        ({"quantization": "fp8", "offload": "sequential"}, "quantization: not with offload"),
    ],
)
def test_what_it_does_not_go_with_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoadOptions(**options)


def test_adapters_and_other_weights_are_refused_and_sleep_is_not(controlled: Make) -> None:
    commands = controlled("qwen-image", quantization="fp8").control.commands
    for name in ("add_lora", "remove_lora", "pin_lora", "list_loras", "load_weights"):
        assert commands[name] == "its denoiser's weights are quantized"
    assert commands["sleep"] == commands["wake"] == ""


def test_a_quantized_pipeline_sleeps_at_the_level_from_which_it_wakes_as_it_was(
    controlled: Make,
) -> None:
    made = controlled("qwen-image", quantization="fp8")
    before = picture(made.pipeline)
    with pytest.raises(RequestError, match="level must be 1"):
        made.obey("sleep", level=2, tags=None)
    assert made.obey("sleep", level=1, tags=None)["asleep"]
    made.obey("wake", tags=None)
    assert torch.equal(picture(made.pipeline), before)


def test_pictures_of_several_requests_at_once_are_near_those_of_each_alone(
    controlled: Make,
) -> None:
    """Rows of one product do not depend on each other, but what attention rounds otherwise in a
    shared forward may take another step of float8.
    """
    made = controlled("qwen-image", quantization="fp8")
    begin_together(made.engine, 3)
    together = [job.result.result(TIMEOUT_S) for job in [made.ask({}, seed) for seed in range(3)]]
    assert max(made.engine.batch_sizes) > 1
    for seed, pictures in enumerate(together):
        alone = made.ask({}, seed).result.result(TIMEOUT_S)
        assert (pictures.images - alone.images).abs().mean() < 5e-3
        assert (pictures.images - together[seed - 1].images).abs().mean() > 2e-2
