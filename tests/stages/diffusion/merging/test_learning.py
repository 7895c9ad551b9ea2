"""What is learned of denoisers that differ in one thing each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from omnistage.stages.diffusion.merging.axes import Axes
from omnistage.stages.diffusion.merging.learning import SeenCall, first_calls, learn

Forward = Callable[..., torch.Tensor]


def masked_mean(text: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None:
        mask = torch.ones(text.shape[:2])
    weights = mask[..., None].to(text.dtype)
    return (text * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)


class Masked(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, text_mask: Any = None
    ) -> torch.Tensor:
        return x * t.view(-1, 1, 1) + masked_mean(text, text_mask)


class IgnoresItsMask(Masked):
    def forward(
        self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, text_mask: Any = None
    ) -> torch.Tensor:
        return x * t.view(-1, 1, 1) + text.mean(1, keepdim=True)


class WantsOneNumber(Masked):
    def forward(
        self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, text_mask: Any = None
    ) -> torch.Tensor:
        return x * float(t) + masked_mean(text, text_mask)


class MixesRows(Masked):
    def forward(
        self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, text_mask: Any = None
    ) -> torch.Tensor:
        return x - x.mean() + masked_mean(text, text_mask)


class RoundsByBatch(Masked):
    def forward(
        self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, text_mask: Any = None
    ) -> torch.Tensor:
        """As a large model with random weights does: each batch size has a result of its own."""
        return super().forward(x, t, text, text_mask) * len(x)


class MisplacesMasks(Masked):
    def forward(
        self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, text_mask: Any = None
    ) -> torch.Tensor:
        """For one length in three."""
        if text_mask is not None and text.shape[1] % 3 == 2:
            text_mask = text_mask.roll(1, 1)
        return super().forward(x, t, text, text_mask)


def call(batch: int, length: int = 4, t: float = 0.5, mask: Any = None) -> dict[str, Any]:
    random = torch.Generator().manual_seed(batch)
    return {
        "x": torch.randn(batch, 5, 3, generator=random),
        "t": torch.tensor(t),
        "text": torch.randn(batch, length, 3, generator=random),
        "text_mask": mask,
    }


def learned(module: torch.nn.Module, length: int = 4) -> Axes | None:
    calls = [call(batch, length) for batch in (1, 2)]
    seen = [SeenCall(one, module(**one)) for one in calls]
    return learn(module, *seen)


def merged(axes: Axes, *calls: dict[str, Any]) -> dict[str, Any]:
    spread = [axes.spread_out(one) for one in calls]
    assert len({axes.key(one) for one in spread}) == 1
    assert all(map(axes.fits, spread))
    assert axes.may_join(spread[0], spread[1])
    return axes.merge(spread)


def test_numbers_are_spread_and_texts_padded() -> None:
    module = Masked()
    axes = learned(module)
    assert axes is not None
    calls = call(1, 4, 0.5), call(2, 7, 0.25), call(1, 6, 1.0, torch.ones(1, 6).bool())
    result = module(**merged(axes, *calls))
    expected = torch.cat([module(**axes.spread_out(one)) for one in calls])
    assert torch.allclose(result, expected, atol=1e-6)


def test_texts_of_one_length_stay_without_a_mask() -> None:
    axes = learned(Masked())
    assert axes is not None
    assert merged(axes, call(1), call(2))["text_mask"] is None


def test_a_mask_without_effect_pads_nothing() -> None:
    axes = learned(IgnoresItsMask())
    assert axes is not None
    assert axes.paddings == ()
    assert axes.key(call(1, 4)) != axes.key(call(1, 5))
    assert not axes.fits(call(1, mask=torch.ones(1, 4)))  # no mask was there to learn from


@pytest.mark.parametrize("length", [4, 5, 6])
def test_a_mask_that_is_wrong_for_some_lengths_pads_nothing(length: int) -> None:
    module = MisplacesMasks()
    axes = learned(module, length)
    assert axes is not None
    assert axes.paddings == ()


def test_one_number_for_all_rows_splits_calls_that_differ_in_it() -> None:
    axes = learned(WantsOneNumber())
    assert axes is not None
    assert not axes.spread
    assert axes.may_join(call(1), call(2))
    assert not axes.may_join(call(1), call(2, t=0.25))


def test_a_denoiser_whose_rows_depend_on_each_other_is_never_merged() -> None:
    assert learned(MixesRows()) is None


def test_rounding_that_only_the_size_of_a_batch_changes_does_not_keep_calls_apart() -> None:
    assert learned(RoundsByBatch()) is not None


class Guided(torch.nn.Module):
    """Leaves out blocks in some calls, and knows the size of each row."""

    def forward(
        self, x: torch.Tensor, t: torch.Tensor, blocks: Any = None, sizes: Any = None
    ) -> torch.Tensor:
        """Return its rows."""
        return x * t[:, None, None]


def test_a_list_of_later_calls_is_shared_if_it_does_not_grow() -> None:
    module = Guided()

    def pipeline(num: int) -> None:
        given = call(num)
        rows = {"x": given["x"], "t": given["t"].expand(num)}
        module(**rows)
        module(**rows, blocks=[1], sizes=[8] * num)

    once, twice = (first_calls(pipeline, {"m": module}, {"num": num})["m"] for num in (1, 2))
    axes = learn(module, once, twice)
    assert axes is not None
    plain = {"x": torch.zeros(1, 5, 3), "t": torch.zeros(1)}
    guided = {**plain, "blocks": [1]}
    assert axes.fits(guided)
    assert axes.may_join(guided, guided)
    assert not axes.may_join(guided, {**plain, "blocks": [2]})
    assert axes.key(guided) != axes.key(plain)
    assert not axes.fits({**plain, "sizes": [8]})


def test_nothing_that_grows_is_an_error() -> None:
    seen = SeenCall({"x": torch.zeros(1)}, torch.zeros(1))
    with pytest.raises(ValueError, match="grows with the number"):
        learn(torch.nn.Identity(), seen, seen)


def test_arguments_in_dicts_have_axes_too() -> None:
    class Conditioned(torch.nn.Module):
        def forward(self, x: torch.Tensor, added: dict[str, torch.Tensor]) -> torch.Tensor:
            return x + added["bias"]

    module = Conditioned()
    seen = {}
    for batch in (1, 2):
        arguments = {"x": torch.randn(batch, 3), "added": {"bias": torch.randn(batch, 1)}}
        seen[batch] = first_calls(lambda **given: module(**given), {"a": module}, arguments)["a"]
    axes = learn(module, seen[1], seen[2])
    assert axes is not None
    assert axes.by_name == {"x": 0, "added.bias": 0}
