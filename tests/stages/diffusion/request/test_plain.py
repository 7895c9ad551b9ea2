"""Values of a request against the annotations of a pipeline's parameters."""

import collections.abc
import inspect
from typing import Any, Literal, Optional

import pytest
import torch

from omnistage.stages.diffusion.request.plain import PlainForm, checked, names_of, parameters_of


def call(  # type: ignore[no-untyped-def]
    self: Any,
    length: int = 512,
    area: int = 1 << 20,
    scale: float | None = None,
    either: float | list[float] = 1.0,
    text: Optional[str | list[str]] = None,  # noqa: UP045
    flag: bool = True,
    sides: tuple[int, int] = (0, 0),
    layers: tuple[int, ...] = (1,),
    boxes: list[list[float]] | None = None,
    steps: collections.abc.Iterable[int] = (),
    which: Literal["first", "last"] = "first",
    anything: Any = None,
    untyped=3,
    prompt_seed: int = 0,
    mixed: torch.Tensor | list[int] | None = None,
    tensor: torch.Tensor | None = None,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Do nothing."""


PARAMETERS = parameters_of(call)
NOT_PLAIN = {"tensor", "options"}


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("length", 4096, 4096),
        ("area", 4 << 20, 4 << 20),
        ("scale", 2, 2),
        ("scale", -1.5, -1.5),
        ("either", [1, 2.5], [1, 2.5]),
        ("text", "a", "a"),
        ("text", ["a", "b"], ["a", "b"]),
        ("flag", False, False),
        ("sides", [64, 32], (64, 32)),
        ("layers", [1, 2, 3], (1, 2, 3)),
        ("boxes", [[0.1, 0.2], [1, 1]], [[0.1, 0.2], [1, 1]]),
        ("steps", [999, 500], [999, 500]),
        ("which", "last", "last"),
        ("anything", [1, "a", True], [1, "a", True]),
        ("untyped", 4, 4),
        ("prompt_seed", 1 << 62, 1 << 62),
        ("mixed", [1, 2], [1, 2]),
    ],
)
def test_a_value_of_the_annotation_is_taken(name: str, value: Any, taken: Any) -> None:
    made = checked(value, PARAMETERS[name])
    assert (made, type(made)) == (taken, type(taken))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("length", 1.0, "must be an integer"),
        ("length", True, "must be an integer"),
        ("length", "8", "must be an integer"),
        ("length", 4097, "must be between -4096 and 4096"),
        ("area", (4 << 20) + 1, "must be between"),
        ("scale", "1", "must be a number"),
        ("scale", True, "must be a number"),
        ("scale", 1e308, "must be between -1000000 and 1000000"),
        ("either", [1, "a"], "must be a number, or a list, each a number"),
        ("either", [1e308], "must be between"),
        ("either", [[1.0]], "must be a number"),
        ("text", 1, "must be a string, or a list, each a string"),
        ("flag", 1, "must be true or false"),
        ("sides", [1], "must be a list of 2, each an integer"),
        ("sides", [1, 2, 3], "must be a list of 2"),
        ("boxes", [1.0], "must be a list, each a list, each a number"),
        ("which", "middle", "must be one of first, last"),
        ("untyped", "4", "must be an integer"),
        ("prompt_seed", 1 << 63, "must be between"),
        ("tensor", [1.0], "must be"),
    ],
)
def test_any_other_value_is_refused_with_what_is_allowed(
    name: str, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        checked(value, PARAMETERS[name])


def test_parameters_without_plain_values_and_without_names_are_left_out() -> None:
    assert "kwargs" not in PARAMETERS
    plain = set(names_of(PARAMETERS.values()))
    assert plain == PARAMETERS.keys() - NOT_PLAIN
    assert PlainForm.all_of(PARAMETERS["options"]) == ()


def test_annotations_that_cannot_be_read_leave_the_default_to_judge() -> None:
    def late(steps: "Missing" = 3, scale: "float" = 1.0) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    found = parameters_of(late)
    assert isinstance(found["steps"], inspect.Parameter)
    assert PlainForm.all_of(found["steps"]) == (PlainForm(int),)
    assert checked(2.5, found["scale"]) == 2.5
