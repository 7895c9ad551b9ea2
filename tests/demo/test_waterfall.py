"""Times and the waterfall."""

from xml.etree import ElementTree

import pytest

from omnistage.demo.timing import Timing
from omnistage.demo.waterfall import (
    EMPTY,
    Mark,
    Span,
    figures,
    spans,
    times_html,
    waterfall_svg,
    with_page,
)

MARKS = [
    Mark("gateway", "received", 0.0),
    Mark("thinker", "first_token", 30.0),
    Mark("thinker", "received", 10.0),
    Mark("code2wav", "first_samples", 40.0),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_span_lies_between_a_stamp_and_the_next_in_time() -> None:
    assert spans(MARKS) == [
        Span("thinker", "received", 0.0, 10.0),
        Span("thinker", "first_token", 10.0, 30.0),
        Span("code2wav", "first_samples", 30.0, 40.0),
    ]


def bars() -> list[ElementTree.Element]:
    root = ElementTree.fromstring(waterfall_svg(MARKS))
    return [bar for bar in root.iter(f"{SVG}rect") if bar.get("class") is None]


def test_bars_lie_where_their_spans_do() -> None:
    places = [(bar.get("x"), bar.get("width")) for bar in bars()]
    assert places == [("0.00%", "25.00%"), ("25.00%", "50.00%"), ("75.00%", "25.00%")]


def test_a_stage_has_one_colour_of_its_own() -> None:
    first, second, third = (bar.get("fill") for bar in bars())
    assert first == second != third


def test_what_bars_show_is_also_said_in_words() -> None:
    root = ElementTree.fromstring(waterfall_svg(MARKS))
    assert "thinker first_token at 30 ms" in root.attrib["aria-label"]
    assert "+20.0 ms, at 30.0" in [text.text for text in root.iter(f"{SVG}text")]


def test_names_are_escaped() -> None:
    marks = [Mark("a", "b", 0), Mark('<&"', "<script>", 1)]
    ElementTree.fromstring(waterfall_svg(marks))


@pytest.mark.parametrize("marks", [[], MARKS[:1]])
def test_without_spans_nothing_is_drawn(marks: list[Mark]) -> None:
    assert waterfall_svg(marks) == ""


def timing(**fields: float) -> Timing:
    made = Timing(begun_s=0.0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_the_page_s_own_stamp_is_the_last() -> None:
    with_sound = with_page(MARKS, timing(first_text_s=0.01, first_sound_s=0.05))
    assert with_sound[-1] == Mark("page", "first_audio", 50.0)
    assert with_page(MARKS, timing(first_text_s=0.06))[-1] == Mark("page", "first_text", 60.0)
    assert with_page(MARKS, timing(first_text_s=0.01)) == MARKS


def test_figures_are_those_that_are_known() -> None:
    known = timing(first_text_s=0.1234, first_sound_s=0.5, ended_s=2.0)
    known.sound_bytes = 4 * 2 * 24_000
    values = {name: value for name, value, _ in figures(known)}
    assert values == {
        "TTFT": "123 ms",
        "TTFP": "500 ms",
        "RTF": "0.50",
        "Whole answer": "2.00 s",
    }


def test_the_panel_says_so_while_nothing_is_known() -> None:
    assert times_html(timing()) == EMPTY
    assert "TTFT" in times_html(timing(first_text_s=0.1), MARKS)


def test_only_the_first_of_a_kind_is_the_first() -> None:
    made = Timing()
    made.text()
    made.sound(10)
    first = (made.first_text_s, made.first_sound_s)
    made.text()
    made.sound(20)
    assert (made.first_text_s, made.first_sound_s) == first
    assert made.sound_bytes == 30
    assert made.rtf is None
