"""Linear layers in float8."""

from typing import Any

import pytest
import torch
from support.kernels import relative_error
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import gelu

from omnistage.stages.diffusion.blocks.float8 import Float8Linear, in_float8, products

CPU = torch.device("cpu")


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
    assert 0.001 < relative_error(made, exact) < 0.05  # three bits of fraction


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
    assert targets.count(torch._scaled_mm) == 1


def test_a_compiled_layer_takes_any_number_of_rows_without_being_compiled_again() -> None:
    _, ours = layers()
    numbers = range(6, 14)
    counter = CompileCounter()
    compiled = torch.compile(ours, backend=counter)
    for count in numbers:
        rows = torch.randn(count, 64)
        assert torch.equal(compiled(rows), ours(rows))
    assert counter.frame_count <= 2 < len(numbers)


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


@pytest.mark.parametrize(("num_columns", "is_added_after"), [(5120, False), (5136, True)])
def test_a_bias_is_added_after_a_product_of_many_columns(
    num_columns: int, is_added_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLAS has none that adds it to few rows: a text of ten tokens failed on an H200."""
    torch.manual_seed(0)
    linear = nn.Linear(num_columns, 16)
    ours, given = Float8Linear(linear, CPU), []
    product = torch._scaled_mm

    def noted(*args: Any, **more: Any) -> torch.Tensor:
        given.append(more["bias"] is not None)
        return product(*args, **more)

    monkeypatch.setattr(torch, "_scaled_mm", noted)
    for num_rows in (1, 600):
        rows = torch.randn(num_rows, num_columns)
        with torch.inference_mode():
            assert relative_error(ours(rows), linear(rows)) < 0.06
    assert given == 2 * [not is_added_after]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU with products of float8")
@pytest.mark.parametrize("num_rows", [1, 10, 64, 230, 400, 513, 4096])
@pytest.mark.parametrize(
    "sizes", [(3072, 3072), (3072, 12288), (12288, 3072), (8960, 1536), (16384, 256), (5120, 13824)]
)
def test_a_gpu_has_a_product_of_any_size(sizes: tuple[int, int], num_rows: int) -> None:
    torch.manual_seed(0)
    cuda = torch.device("cuda")
    linear = nn.Linear(*sizes).to(cuda, torch.bfloat16)
    rows = torch.randn(num_rows, sizes[0], device=cuda, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert relative_error(Float8Linear(linear, cuda)(rows), linear(rows)) < 0.05


def test_layers_of_the_same_inputs_round_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2, 5, 64)
    several = [Float8Linear(nn.Linear(64, size), CPU) for size in (48, 32, 16)]
    expected = [layer(inputs) for layer in several]
    rounded: list[torch.Tensor] = []

    def counted(rows: torch.Tensor, has_gelu: bool) -> tuple[torch.Tensor, torch.Tensor]:
        rounded.append(rows)
        return in_float8(rows, has_gelu)

    monkeypatch.setattr("omnistage.stages.diffusion.blocks.float8.in_float8", counted)
    for found, one in zip(products(inputs, several), expected, strict=True):
        assert torch.equal(found, one)
    assert len(rounded) == 1


def test_a_layer_takes_the_gelu_that_the_one_before_it_leaves() -> None:
    _, ours = layers()
    inputs = torch.randn(2, 5, 64)
    expected = ours(gelu(inputs, approximate="tanh"))
    ours.takes_gelu = True
    assert torch.equal(ours(inputs), expected)


def test_layers_of_which_one_is_not_float8_are_called() -> None:
    linear, ours = layers()
    inputs = torch.randn(2, 5, 64)
    exact, near = products(inputs, [linear, ours])
    assert torch.equal(exact, linear(inputs))
    assert torch.equal(near, ours(inputs))
