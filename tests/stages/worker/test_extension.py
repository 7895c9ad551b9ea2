"""A user's class of methods for workers, and what may come back from one."""

from typing import Any

import pytest
from support.stages.worker_methods import RESULTS, Methods

from omnistage.stages.worker.extension import (
    MAX_RESULT_BYTES,
    check_method,
    extension_of,
    methods_of,
    plain_result,
)
from omnistage.stages.worker.failure import RequestError

HERE = "support.stages.worker_methods"


def test_a_class_is_found_by_its_path() -> None:
    assert extension_of(f"{HERE}.Methods") is Methods
    assert extension_of("") is extension_of(None) is None


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("Methods", "must be like my.module.Class, not 'Methods'"),
        (3, "must be like my.module.Class, not 3"),
        ("not_there.Methods", "ModuleNotFoundError: No module named 'not_there'"),
        (f"{HERE}.Other", "AttributeError: module .* has no attribute 'Other'"),
        (f"{HERE}.NO_CLASS", "is no class"),
    ],
)
def test_what_is_no_class_is_refused_by_the_arguments_name(path: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^worker_extension_cls: .*{said}"):
        extension_of(path)


def test_its_public_methods_may_be_called_those_of_its_bases_too() -> None:
    assert methods_of(Methods) == ["num_weights", "process", "doubled", "result", "fail_on", "wait"]
    assert methods_of(None) == []
    check_method("num_weights", Methods)


@pytest.mark.parametrize("name", ["_times", "factor", "sleep", "__init__", "model_runner"])
def test_nothing_else_may_be_called(name: str) -> None:
    with pytest.raises(RequestError, match=f"no method {name!r} .* it has num_weights, ") as caught:
        check_method(name, Methods)
    assert (caught.value.status, caught.value.param) == (400, "method")


def test_a_result_is_as_json_has_it() -> None:
    sent = {name: plain_result(RESULTS[name]) for name in ("text", "numbers", "pair", "keys")}
    assert sent == {
        "text": "é\n",
        "numbers": [1, 2.5, True, None],
        "pair": [1, 2],
        "keys": {"1": "one"},
    }


@pytest.mark.parametrize(
    "name", ["not a number", "lone surrogate", "large integer", "tensor", "object", "cycle"]
)
def test_a_result_that_is_no_json_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="its result is no JSON: "):
        plain_result(RESULTS[name])


def test_a_result_that_is_nested_too_deeply_is_an_error() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValueError, match="its result is no JSON: "):
        plain_result(deep)


def test_a_result_is_no_longer_than_a_channel_takes() -> None:
    plain_result("x" * (MAX_RESULT_BYTES - 2))
    with pytest.raises(ValueError, match=f"bytes of JSON; at most {MAX_RESULT_BYTES}"):
        plain_result(RESULTS["long"])
