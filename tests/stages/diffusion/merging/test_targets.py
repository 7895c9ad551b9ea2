"""Calls of a denoiser whose rows are divided among groups of ranks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from diffusers import ZImageTransformer2DModel

from omnistage.stages.diffusion.merging.calls import Call, is_close
from omnistage.stages.diffusion.merging.learning import first_calls, learn
from omnistage.stages.diffusion.merging.targets import Denoiser

Arguments = dict[str, Any]


class OneAfterTheOther:
    """Two groups in this process; it notes how many rows each computes."""

    num_groups = 2

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self.num_rows: list[int] = []

    def run(
        self, name: str, calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]
    ) -> list[Any]:
        self.num_rows = [len(kwargs["x"]) for _, kwargs in calls]
        return [self._forward(*args, **kwargs) for args, kwargs in calls]


class Residuals(torch.nn.Module):
    """Returns a list with as many tensors as one row in each group has rows: one."""

    def forward(self, x: torch.Tensor) -> tuple[list[torch.Tensor]]:
        return ([x * 2],)


class Divided:
    """A denoiser over two groups, its axes learned from calls of 1 and 2 rows."""

    def __init__(self, module: torch.nn.Module, arguments: Callable[[int], Arguments]) -> None:
        self._module = module
        seen = [
            first_calls(lambda **given: module(**given), {"one": module}, arguments(size))["one"]
            for size in (1, 2)
        ]
        axes = learn(module, *seen)
        assert axes is not None
        self.groups = OneAfterTheOther(module.forward)
        self._denoiser = Denoiser("one", module.forward, axes, self.groups)

    @torch.inference_mode()
    def check(self, *calls: Arguments) -> None:
        """Calls that are made as one come to what each comes to alone."""
        bound: list[Call] = [self._denoiser.call((), call) for call in calls]
        results = self._denoiser.run(bound)
        for call, result in zip(calls, results, strict=True):
            assert is_close(self._module(**call), result)


def z_image() -> torch.nn.Module:
    torch.manual_seed(0)
    made: torch.nn.Module = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=8,
        axes_dims=[4, 6, 6],
        axes_lens=[64, 16, 16],
    )
    return made.eval()


def z_image_call(num_rows: int) -> Arguments:
    """As its pipeline makes it: latents and texts are lists of rows."""
    random = torch.Generator().manual_seed(num_rows)
    return {
        "x": list(torch.randn(num_rows, 4, 1, 8, 8, generator=random)),
        "t": torch.full((num_rows,), 0.5),
        "cap_feats": list(torch.randn(num_rows, 5, 8, generator=random)),
        "return_dict": False,
    }


@pytest.fixture(scope="module")
def z() -> Divided:
    return Divided(z_image(), z_image_call)


@pytest.mark.parametrize(("num_rows", "in_groups"), [(2, [1, 1]), (3, [1, 2]), (8, [4, 4])])
def test_a_denoiser_that_returns_a_list_of_rows_has_them_all_after_two_groups(
    z: Divided, num_rows: int, in_groups: list[int]
) -> None:
    z.check(z_image_call(num_rows))
    assert z.groups.num_rows == in_groups


def test_calls_of_a_denoiser_that_returns_lists_of_rows_get_their_own(z: Divided) -> None:
    z.check(z_image_call(1), z_image_call(2), z_image_call(3))
    assert z.groups.num_rows == [3, 3]


def test_a_list_of_tensors_of_all_rows_is_joined_tensor_by_tensor() -> None:
    residuals = Divided(Residuals(), lambda size: {"x": torch.arange(4.0 * size).view(size, 4)})
    residuals.check({"x": torch.randn(2, 4)})
    assert residuals.groups.num_rows == [1, 1]
