"""Dummy weights: what each kind of parameter gets."""

import pytest
import torch

from omnistage.stages import dummy_weights
from omnistage.stages.dummy_weights import MATRIX_BOUND, fill_with_dummy_weights


def filled(name: str, *shape: int) -> torch.Tensor:
    parameter = torch.full(shape, 7.0)
    fill_with_dummy_weights([(name, parameter)])
    return parameter


def test_matrices_and_embeddings_are_uniform() -> None:
    for shape in ((64, 80), (4, 64, 80)):
        values = filled("experts.w13_weight", *shape)
        assert values.abs().max() <= MATRIX_BOUND
        assert abs(values.mean()) < MATRIX_BOUND / 20
        assert values.std() == pytest.approx(MATRIX_BOUND / 3**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers.0.input_layernorm.weight", 1.0),
        ("visual.blocks.0.norm1.bias", 0.0),
        ("upsample.0.1.gamma", 0.01),
        ("layers.0.mlp_layer_scale.scale", 0.01),
        ("decoder.1.block.0.alpha", 7.0),
    ],
)
def test_vectors_are_what_training_starts_from(name: str, value: float) -> None:
    assert filled(name, 5).tolist() == pytest.approx([value] * 5)


def test_values_depend_on_the_name_alone() -> None:
    assert torch.equal(filled("a.weight", 3, 4), filled("a.weight", 3, 4))
    assert not torch.equal(filled("a.weight", 3, 4), filled("b.weight", 3, 4))


def test_values_are_those_of_any_device_or_layout() -> None:
    """Literal values: no device's generator has a part in them."""
    expected = [[-0.009576, -0.024661, 0.033218], [0.010130, 0.020985, 0.024333]]
    assert torch.allclose(filled("a.weight", 2, 3), torch.tensor(expected), atol=1e-6)
    turned = torch.full((3, 2), 7.0).T
    fill_with_dummy_weights([("a.weight", turned)])
    assert torch.equal(turned, filled("a.weight", 2, 3))


def test_values_of_a_large_parameter_do_not_depend_on_how_it_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = filled("a.weight", 37, 41)
    monkeypatch.setattr(dummy_weights, "CHUNK", 100)
    assert torch.equal(filled("a.weight", 37, 41), whole)


@pytest.mark.parametrize(
    "parameter",
    [
        torch.zeros(2, 2, dtype=torch.int32),
        torch.zeros(2, 2, dtype=torch.float8_e4m3fn),
        torch.zeros(2, 2, device="meta"),
    ],
)
def test_a_quantised_model_is_refused(parameter: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"quantised model: w\.weight"):
        fill_with_dummy_weights([("w.weight", parameter)])
