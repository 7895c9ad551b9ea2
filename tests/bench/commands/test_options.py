"""What may be typed, and what is said of the rest."""

from pathlib import Path

import pytest

from omnistage.bench.commands.options import (
    check_place,
    command_line,
    make_loads,
    read_modalities,
    read_object,
)
from omnistage.bench.load import ClosedLoop, OpenLoop


def test_levels_have_their_usual_requests() -> None:
    assert make_loads("1,8,32", None, None, None, 0) == (
        ClosedLoop(1, 16, 2),
        ClosedLoop(8, 32, 16),
        ClosedLoop(32, 128, 64),
    )
    assert make_loads(None, None, None, None, 0) == (ClosedLoop(1, 16, 2),)
    fewer = make_loads("1,4", None, None, None, 0, min_requests=1)
    assert fewer == (ClosedLoop(1, 4, 2), ClosedLoop(4, 16, 8))


def test_requests_are_given_for_all_levels_or_for_each() -> None:
    assert make_loads("1,4", None, "10", "0", 0) == (ClosedLoop(1, 10, 0), ClosedLoop(4, 10, 0))
    assert make_loads("1,4", None, "3,5", "1,2", 0) == (ClosedLoop(1, 3, 1), ClosedLoop(4, 5, 2))


def test_rates_are_arrivals() -> None:
    assert make_loads(None, "0.5,2", "10", None, 9) == (
        OpenLoop(0.5, 10, 2, 9),
        OpenLoop(2.0, 10, 2, 9),
    )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("4", "1", None, None), "exclude each other"),
        (("four", None, None, None), "--concurrency takes whole numbers by commas, not 'four'"),
        (("1.5", None, None, None), "whole numbers"),
        (("0", None, None, None), "--concurrency 0 is out of range"),
        ((None, "-1", None, None), "--rate -1.0 is out of range"),
        ((None, "inf", None, None), "--rate inf is out of range"),
        ((None, "nan", None, None), "--rate nan is out of range"),
        (("8", None, "4", None), "--requests 4 cannot keep 8 streams busy"),
        (("1,2", None, "4,4,4", None), "--requests has 3 numbers for 2 levels"),
        (("1", None, None, "-1"), "--warmups -1 is out of range"),
    ],
)
def test_a_load_that_cannot_be_is_refused(
    given: tuple[str | None, str | None, str | None, str | None], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_loads(*given, 0)


@pytest.mark.parametrize(
    ("text", "complaint"), [("{", "--body is no JSON"), ("[1]", "must be a JSON object")]
)
def test_body_fields_are_an_object(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_object("--body", text)


def test_modalities_are_known_ones() -> None:
    assert read_modalities("text,audio", 100) == ("text", "audio")
    with pytest.raises(ValueError, match="'sound' is unknown; allowed: text"):
        read_modalities("sound", None)
    with pytest.raises(ValueError, match="--frames needs"):
        read_modalities("text", 100)


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    check_place("--json", tmp_path / "a.json", ".json")
    check_place("--json", None, ".json")
    with pytest.raises(ValueError, match=r"--plot writes \.svg files, not 'a\.png'"):
        check_place("--plot", tmp_path / "a.png", ".svg")
    with pytest.raises(ValueError, match="there is no folder"):
        check_place("--json", tmp_path / "none" / "a.json", ".json")


def test_the_command_is_kept_without_the_key() -> None:
    arguments = ["/somewhere/omnistage", "bench", "serve", "--api-key=sk-1", "--seed", "3 4"]
    said = "omnistage bench serve --api-key=KEY --seed '3 4'"
    assert command_line(arguments, "sk-1") == said
