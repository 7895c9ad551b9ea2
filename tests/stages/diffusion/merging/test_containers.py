"""Arguments that hold tensors are compared by what is in them, and merged tensor by tensor."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from PIL import Image

from omnistage.stages.diffusion.merging.axes import Axes
from omnistage.stages.diffusion.merging.calls import has_row_lists, is_same, split
from omnistage.stages.diffusion.merging.containers import leaves, outline, rebuilt
from omnistage.stages.diffusion.merging.learning import SeenCall, calls_of_two, first_calls, learn


class Cache:
    """An object without an equality of its own, as GLM-Image's cache is."""

    def __init__(self, mode: str | None = None, keys: torch.Tensor | None = None) -> None:
        self.mode = mode
        self.layers = [{"keys": keys}, {"keys": None}]


Pair = namedtuple("Pair", "a b")
ROWS = torch.arange(4.0).view(2, 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Cache(), Cache(), True),
        (Cache("read"), Cache("read"), True),
        (Cache("read"), Cache("write"), False),
        (Cache("read", ROWS), Cache("read", ROWS.clone()), True),
        (Cache("read", ROWS), Cache("read", ROWS + 1), False),
        (Cache("read", ROWS), Cache("read"), False),
        (Cache(), object(), False),
        (Cache(), None, False),
        ([Cache()], [Cache()], True),
        (len, len, True),
        (len, max, False),
    ],
)
def test_objects_are_the_same_by_type_and_by_what_is_in_them(
    one: Any, other: Any, expected: bool
) -> None:
    assert is_same(one, other) is expected


@pytest.mark.parametrize(
    "value",
    [ROWS, [ROWS, None], (ROWS, 1), {"a": ROWS, 2: [ROWS]}, Cache("read", ROWS), Pair(ROWS, "b")],
)
def test_a_value_is_put_together_again_with_other_tensors(value: Any) -> None:
    made = rebuilt(value, iter([one + 1 for one in leaves(value)]))
    assert outline(made) == outline(value)
    for new, old in zip(leaves(made), leaves(value), strict=True):
        assert torch.equal(new, old + 1)


class Module(torch.nn.Module):
    """A denoiser with residuals as a ControlNet's list, and with an object."""

    def forward(self, x: torch.Tensor, residuals: Any = None, cache: Any = None) -> torch.Tensor:
        for one in residuals or ():
            x = x + one.flatten(1).sum(1, keepdim=True)
        if cache is not None and cache.mode == "write":
            cache.layers[0]["keys"] = x
        elif cache is not None and cache.layers[0]["keys"] is not None:
            x = x + cache.layers[0]["keys"]
        return x


def call(num_rows: int, **more: Any) -> dict[str, Any]:
    return {"x": torch.randn(num_rows, 2), **more}


def learned(*calls: dict[str, Any], module: torch.nn.Module | None = None) -> Axes | None:
    made = module or Module()
    seen = [first_calls(lambda **given: made(**given), {"a": made}, one)["a"] for one in calls]
    return learn(made, *seen)


def residuals(num_rows: int) -> list[torch.Tensor]:
    return [torch.randn(num_rows, 3), torch.randn(num_rows, 2, 2)]


def test_lists_of_tensors_that_grow_are_merged_tensor_by_tensor() -> None:
    axes = learned(call(1, residuals=residuals(1)), call(2, residuals=residuals(2)))
    assert axes is not None
    calls = [call(rows, residuals=residuals(rows)) for rows in (1, 3)]
    assert all(map(axes.fits, calls))
    assert axes.key(calls[0]) == axes.key(calls[1])
    merged = Module()(**axes.merge(calls))
    wanted = [Module()(**one) for one in calls]
    assert torch.allclose(merged, torch.cat(wanted))
    apart = axes.take_apart(calls[1], 3)
    assert torch.allclose(torch.cat([Module()(**one) for one in apart]), wanted[1])


@pytest.mark.parametrize("wrong", [residuals(2), residuals(1)[:1], None, residuals(1) * 2])
def test_a_list_that_was_not_learned_keeps_its_call_alone(wrong: Any) -> None:
    axes = learned(call(1, residuals=residuals(1)), call(2, residuals=residuals(2)))
    assert axes is not None
    good, bad = call(1, residuals=residuals(1)), call(1, residuals=wrong)
    assert not (axes.fits(bad) and axes.key(bad) == axes.key(good))


def test_objects_that_are_alike_are_shared_and_others_are_not() -> None:
    axes = learned(call(1, cache=Cache()), call(2, cache=Cache()))
    assert axes is not None
    one, other = (call(1, cache=Cache()) for _ in range(2))
    assert axes.fits(one)
    assert axes.key(one) == axes.key(other)
    assert axes.may_join(one, other)
    for cache in (Cache("write"), Cache("read", torch.ones(1, 2)), None):
        assert not axes.fits(call(1, cache=cache)) or axes.key(call(1, cache=cache)) != axes.key(
            one
        )


def test_tensors_of_objects_are_merged_by_their_rows() -> None:
    pairs = [call(rows, cache=Cache("read", torch.randn(rows, 2))) for rows in (1, 2)]
    axes = learned(*pairs)
    assert axes is not None
    wanted = torch.cat([Module()(**one) for one in pairs])
    assert torch.equal(Module()(**axes.merge(pairs)), wanted)


def test_a_denoiser_that_writes_to_an_object_is_never_merged() -> None:
    assert learned(call(1, cache=Cache("write")), call(2, cache=Cache("write"))) is None


class Thirds(torch.nn.Module):
    """Perturbed attention: a batch's last third has another rule, and sums round otherwise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2)
        return torch.cat([first, second * 2]) * len(x)


def test_a_denoiser_whose_batch_has_parts_is_never_merged() -> None:
    seen = [SeenCall({"x": x}, Thirds()(x)) for x in (torch.randn(2, 3), torch.randn(4, 3))]
    assert learn(Thirds(), *seen) is None


@pytest.mark.parametrize("num_rows", [2, 3])
def test_lists_that_are_no_rows_are_split_by_their_tensors(num_rows: int) -> None:
    """With as many items as rows, too: a ControlNet of 12 residuals and 12 rows."""
    result = ([torch.arange(num_rows), torch.arange(num_rows) + 10], torch.arange(num_rows))
    rows: list[Any] = split(result, [1] * num_rows)
    assert [[one.item() for one in residual] for residual, _ in rows] == [
        [index, index + 10] for index in range(num_rows)
    ]


def test_dicts_by_number_are_split() -> None:
    assert split({0: torch.arange(2)}, [1, 1]) == [{0: torch.tensor([0])}, {0: torch.tensor([1])}]


def test_lists_of_rows_are_told_by_a_call_of_twice_as_many() -> None:
    assert has_row_lists([1], [1, 2])
    assert not has_row_lists([1, 2], [1, 2])


class MakesOne:
    """A pipeline that makes one of each prompt, whatever number is wanted."""

    def __init__(self, most: int = 2) -> None:
        self.denoiser = Module()
        self._most = most

    def __call__(self, prompt: str | list[str], num: int = 1) -> torch.Tensor:
        rows = 1 if isinstance(prompt, str) else len(prompt)
        if rows > self._most:
            raise ValueError("one prompt only")
        made: torch.Tensor = self.denoiser(torch.randn(rows, 2))
        return made


@pytest.mark.parametrize(("most", "found"), [(2, [2]), (1, [])])
def test_a_pipeline_that_makes_one_of_each_prompt_learns_from_two(
    most: int, found: list[int]
) -> None:
    pipeline = MakesOne(most)
    modules = {"a": pipeline.denoiser}
    once = {"prompt": "a cat"}
    seen = first_calls(pipeline, modules, once)
    second = calls_of_two(pipeline, modules, once, {**once, "num": 2}, seen)
    assert [len(one.arguments["x"]) for one in second.values()] == found


def test_what_a_decoder_cannot_take_twice_is_learned_before_it() -> None:
    module = Module()

    def pipeline(prompt: list[str] | str, num: int = 1) -> None:
        module(torch.randn(num, 2))
        if num > 1:
            raise RuntimeError("the decoder takes one video")

    seen = first_calls(pipeline, {"a": module}, {"prompt": "a cat"})
    second = calls_of_two(
        pipeline, {"a": module}, {"prompt": "a cat"}, {"prompt": "", "num": 2}, seen
    )
    assert len(second["a"].arguments["x"]) == 2


def test_a_pipeline_that_wants_an_image_for_each_prompt_learns_from_two_of_both() -> None:
    module = Module()

    def pipeline(prompt: list[str] | str, image: Any) -> None:
        rows = 1 if isinstance(prompt, str) else len(prompt)
        if isinstance(image, list) != (rows > 1):
            raise ValueError("an image for each prompt")
        module(torch.randn(rows, 2))

    once = {"prompt": "a cat", "image": Image.new("RGB", (2, 2))}
    seen = first_calls(pipeline, {"a": module}, once)
    second = calls_of_two(pipeline, {"a": module}, once, once, seen)
    assert len(second["a"].arguments["x"]) == 2


class Empties(torch.nn.Module):
    """A U-Net that takes the features of an adapter from the list that it is given."""

    def forward(self, x: torch.Tensor, t: torch.Tensor, features: Any = None) -> torch.Tensor:
        while features:
            x = x + features.pop(0).flatten(1).sum(1, keepdim=True)
        return x * t.view(-1, 1)


def test_a_list_that_the_denoiser_empties_is_learned_as_it_came() -> None:
    calls = [call(rows, t=torch.tensor(2.0), features=residuals(rows)) for rows in (1, 2)]
    assert learned(*calls, module=Empties()) is not None
