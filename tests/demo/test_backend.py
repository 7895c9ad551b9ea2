"""Fields of the page, and what its head says."""

import pytest

from omnistage.demo.backend import dead_html, failure_html, number, status_html, whole, written
from omnistage.demo.failure import CannotSend
from omnistage.demo.offer import ModelOffer


@pytest.mark.parametrize("field", [None, "", "  "])
def test_an_empty_field_leaves_it_to_the_server(field: str | None) -> None:
    assert (written(field), number("Seed", field), whole("Seed", field)) == ("", None, None)


def test_numbers_are_read() -> None:
    assert number("Temperature", " 0.5 ") == 0.5
    assert whole("Seed", "-3") == -3
    assert whole("Seed", "0") == 0


@pytest.mark.parametrize("field", ["x", "1,5", "0.5", "nan", "inf"])
def test_what_is_no_whole_number_is_refused_by_the_name_of_its_field(field: str) -> None:
    with pytest.raises(CannotSend, match="Seed must be a"):
        whole("Seed", field)


def test_the_head_tells_what_is_made_and_the_notes() -> None:
    offer = ModelOffer("a<b", frozenset({"audio", "text"}), notes=("It is loading.",))
    html = status_html(offer)
    assert "a&lt;b</code> makes text, audio" in html
    assert "It is loading." in html


def test_what_the_server_notes_of_its_model_is_a_banner() -> None:
    noted = ModelOffer("tiny", frozenset({"text"}), banner="random weights: <noise>")
    banner = '<div class="os-banner" role="note">random weights: &lt;noise&gt;</div>'
    assert status_html(noted).endswith(banner)
    assert "os-banner" not in status_html(ModelOffer("tiny", frozenset({"text"})))


def test_failures_are_read_out_and_escaped() -> None:
    for html in (dead_html("<gone>"), failure_html("<gone>")):
        assert 'role="alert"' in html
        assert "&lt;gone&gt;" in html


def test_commands_in_a_failure_are_code() -> None:
    assert "<code>omnistage serve &lt;MODEL&gt;</code>" in dead_html(
        "Try `omnistage serve <MODEL>`."
    )
