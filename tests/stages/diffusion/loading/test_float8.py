"""Denoisers whose weights and products are float8."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.controlled import Controlled
from torch import nn
from torch._dynamo.testing import CompileCounter

from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.loading.float8 import (
    ALIGNMENT,
    FLOAT8,
    Float8Linear,
    float8_product,
    in_float8,
    quantize,
)
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.worker.failure import RequestError

CPU = torch.device("cpu")
Make = Callable[..., Controlled]
TIMEOUT_S = 60


def layers(has_bias: bool = True) -> tuple[nn.Linear, Float8Linear]:
    """A linear layer, and the same in float8."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=has_bias)
    return linear, Float8Linear(linear, CPU)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_near_the_exact_one_and_has_its_shape_and_dtype(
    dtype: torch.dtype, has_bias: bool
) -> None:
    linear, ours = layers(has_bias)
    inputs = torch.randn(2, 5, 64)
    with torch.inference_mode():
        exact, made = linear(inputs), ours(inputs.to(dtype))
    assert (made.shape, made.dtype) == (exact.shape, dtype)
    off = (made.float() - exact).norm() / exact.norm()
    assert 0.001 < off < 0.05  # three bits of fraction


def test_a_row_depends_on_no_other() -> None:
    _, ours = layers()
    rows = torch.randn(6, 64) * torch.tensor([1e-3, 1, 1e3, 1, 0, 1])[:, None]
    together = ours(rows)
    for index in range(len(rows)):
        assert torch.equal(ours(rows[index : index + 1])[0], together[index])


def test_a_compiled_layer_is_one_graph_with_torchs_product_as_one_operator() -> None:
    _, ours = layers()
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    rows = torch.randn(6, 64)
    assert torch.equal(torch.compile(ours, backend=keep, fullgraph=True)(rows), ours(rows))
    (graph,) = graphs
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.omnistage.float8_product.default) == 1


def test_a_compiled_layer_takes_any_number_of_rows_without_being_compiled_again() -> None:
    _, ours = layers()
    numbers = range(6, 14)
    counter = CompileCounter()
    compiled = torch.compile(ours, backend=counter)
    for count in numbers:
        rows = torch.randn(count, 64)
        assert torch.equal(compiled(rows), ours(rows))
    assert counter.frame_count <= 2 < len(numbers)


def test_the_products_shape_is_known_without_computing_it() -> None:
    _, ours = layers()
    rows, scale = in_float8(torch.randn(6, 64))
    given = (rows, scale, ours.weight, ours.scale, ours.bias)
    torch.library.opcheck(float8_product, given, test_utils="test_faketensor")


def test_inputs_may_lie_in_any_order_and_be_none() -> None:
    _, ours = layers()
    rows = torch.randn(64, 6)
    assert torch.equal(ours(rows.t()), ours(rows.t().contiguous()))
    assert ours(torch.zeros(2, 0, 64)).shape == (2, 0, 48)


def test_rows_of_zeros_and_of_large_numbers_are_finite() -> None:
    linear, _ = layers(has_bias=False)
    with torch.no_grad():
        linear.weight[0] = 0
        linear.weight[1] = 1e30
    made = Float8Linear(linear, CPU)(torch.cat([torch.zeros(1, 64), torch.full((1, 64), 1e4)]))
    assert made.isfinite().all()
    assert not made[0].any()
    assert not made[:, 0].any()


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
    together = [job.result.result(TIMEOUT_S) for job in [made.ask({}, seed) for seed in range(3)]]
    assert max(made.engine.batch_sizes) > 1
    for seed, pictures in enumerate(together):
        alone = made.ask({}, seed).result.result(TIMEOUT_S)
        assert (pictures.images - alone.images).abs().mean() < 5e-3
        assert (pictures.images - together[seed - 1].images).abs().mean() > 2e-2
