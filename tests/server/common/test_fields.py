"""Fields of a request: wrong ones are blamed by their place, refused and unknown ones by name."""

from typing import Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from omnistage.server.common.errors import ApiError
from omnistage.server.common.fields import (
    Refused,
    RequestFields,
    parse,
    refusal_of,
    warning_headers,
)


class Options(RequestFields):
    """Options of a wish."""

    ignored = frozenset({"colour"})

    depth: int = 0


class Strict(BaseModel):
    """Options that may have no others."""

    model_config = ConfigDict(extra="forbid")


class Wish(RequestFields):
    """What is asked in these tests."""

    ignored = frozenset({"user"})
    refused: ClassVar[Refused] = {"echo": (False,), "best_of": (1.0, {})}

    count: Annotated[int, Field(ge=1)]
    options: Options | None = None
    after: Options | None = None
    strict: Strict | None = None


def refusal(fields: Any, place: str | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(Wish, fields, place)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({}, "count", "Field required"),
        ({"count": 0}, "count", "Input should be greater than or equal to 1"),
        ({"count": 1, "options": {"depth": "x"}}, "options.depth", "Input should be a valid int"),
        ({"count": 1, "strict": {"x": 1}}, "strict.x", "Extra inputs are not permitted"),
        ({"count": 0, "options": 3}, "count", "Input should be greater"),  # the first of several
    ],
)
def test_a_wrong_value_is_blamed_by_its_place(
    fields: dict[str, Any], param: str, problem: str
) -> None:
    error = refusal(fields)
    assert (error.status, error.code, error.param) == (400, "invalid_value", param)
    assert error.message.startswith(f"{param}: {problem}")


def test_a_place_around_the_fields_is_named_too() -> None:
    error = refusal({"count": 0}, "stage_params.talker")
    assert error.param == "stage_params.talker.count"
    assert error.message.startswith("stage_params.talker.count: ")


def test_a_refusal_may_have_other_words() -> None:
    with pytest.raises(ApiError) as caught:
        parse(Wish, {}, "{braces}", "{} is refused: {}.")
    assert caught.value.message == "{braces}.count is refused: Field required."


@pytest.mark.parametrize("fields", [[], "text", 3, None])
def test_what_is_no_object_is_refused_whole(fields: Any) -> None:
    error = refusal(fields)
    assert (error.message, error.param) == ("The body must be a JSON object.", None)


def test_a_long_place_leaves_room_for_the_problem() -> None:
    error = refusal_of(["x" * 100_000], "is wrong")
    assert error.message.endswith(": is wrong")
    assert len(error.message) < 10_000


@pytest.mark.parametrize(
    ("name", "nothing"),
    [("echo", None), ("echo", False), ("best_of", None), ("best_of", 1), ("best_of", {})],
)
def test_a_refused_field_may_ask_for_nothing(name: str, nothing: Any) -> None:
    wish = parse(Wish, {"count": 1, name: nothing})
    wish.check()
    assert wish.unknown == []


@pytest.mark.parametrize("name", ["echo", "best_of"])
@pytest.mark.parametrize("value", [True, 0, 0.0, 7, "", "x", [], [0]])
def test_a_refused_field_that_asks_for_something_is_refused(name: str, value: Any) -> None:
    """However little it looks: 0 is a value, and to JSON it is not false."""
    with pytest.raises(ApiError) as caught:
        parse(Wish, {"count": 1, name: value}).check()
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


def test_unknown_fields_are_sorted_and_those_of_options_come_last() -> None:
    said = {"zoom": 1, "angle": 2, "user": "ann", "model_extra": 3}
    options = {"depth": 1, "shade": 2, "colour": 3}
    wish = parse(Wish, {"count": 1, "options": options, "after": {"b": 1, "a": 2}, **said})
    wish.check()
    assert wish.unknown == ["angle", "model_extra", "zoom", "after.a", "after.b", "options.shade"]


def test_an_unknown_field_of_the_name_of_an_option_elsewhere_is_one_field() -> None:
    assert parse(Options, {"options": {"x": 1}}).unknown == ["options"]


def test_nothing_is_warned_of_where_all_is_known() -> None:
    assert warning_headers(parse(Wish, {"count": 1, "user": "ann"}).unknown) == {}
