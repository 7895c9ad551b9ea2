"""A text cut at sentences, clauses and words: nothing is lost, and no number is cut."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.server.tasks.speech.pieces import is_blank, pieces_of, sentence_ends

ALPHABET = "ab1290 ,.;:!?\n\"'\u3002\uff01\uff0c\u4f60\u597d\u0301\u200d\u00e9\U0001f469"
TEXTS = st.one_of(st.text(max_size=400), st.text(alphabet=ALPHABET, max_size=400))


def sentences_of(text: str) -> list[str]:
    ends = sentence_ends(text)
    starts = [0, *ends]
    return [text[a:b] for a, b in zip(starts, [*ends, len(text)], strict=True) if a < b]


@given(TEXTS, st.integers(1, 80))
def test_the_pieces_joined_are_the_text_and_none_is_too_long(text: str, limit: int) -> None:
    pieces = pieces_of(text, limit)
    assert "".join(pieces) == text
    assert all(len(piece) <= limit for piece in pieces)
    assert all(pieces) or pieces == [""]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.integers(12, 60))
def test_a_number_is_never_cut(numbers: list[int], limit: int) -> None:
    written = [f"{number:,}" if number % 2 else f"{number / 100:.2f}" for number in numbers]
    pieces = pieces_of(" and ".join(written), limit)
    assert [one for piece in pieces for one in piece.split() if one != "and"] == written


@given(
    st.lists(
        st.sampled_from(["Yes.", "Is it so?", "No!", "Well, then.", "\u597d\u3002"]), min_size=1
    )
)
def test_texts_of_short_sentences_are_cut_between_them(sentences: list[str]) -> None:
    ends = (".", "?", "!", "\u3002")
    for piece in pieces_of(" ".join(sentences), 12):
        assert piece.rstrip().endswith(ends)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is so. It was so! Is it? Yes", ["It is so. ", "It was so! ", "Is it? ", "Yes"]),
        ("He said \u201cNo.\u201d She left.", ["He said \u201cNo.\u201d ", "She left."]),
        ('"Go!" he said. Then', ['"Go!" he said. ', "Then"]),
        ("Mr. Fox and Dr. J. Who met. So", ["Mr. Fox and Dr. J. Who met. ", "So"]),
        ("Fruit, e.g. Apples, z. B. Birnen. So", ["Fruit, e.g. Apples, z. B. Birnen. ", "So"]),
        ("It costs 3.14 euros. See a.org now.", ["It costs 3.14 euros. ", "See a.org now."]),
        ("Am 3. Mai 2024. Dann", ["Am 3. Mai 2024. ", "Dann"]),
        ("Well... it is. So", ["Well... it is. ", "So"]),
        ("A title\n\nA text. So", ["A title\n\n", "A text. ", "So"]),
        ("\u4f60\u597d\u3002\u518d\u89c1\uff01", ["\u4f60\u597d\u3002", "\u518d\u89c1\uff01"]),
        ("\u300c\u306f\u3044\u3002\u300d\u3068", ["\u300c\u306f\u3044\u3002\u300d", "\u3068"]),
        ("\u0939\u093e\u0901\u0964 \u0928", ["\u0939\u093e\u0901\u0964 ", "\u0928"]),
    ],
)  # fmt: skip
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    assert sentences_of(text) == sentences


def test_as_many_sentences_as_fit_are_one_piece() -> None:
    assert pieces_of("One. Two. Three. Four.", 17) == ["One. Two. Three. ", "Four."]


def test_a_long_sentence_is_cut_at_commas_then_at_words_then_anywhere() -> None:
    assert pieces_of("one two, three four five", 12) == ["one two, ", "three four ", "five"]
    assert pieces_of("\u4e00\u4e8c\uff0c\u4e09\u56db\u4e94", 4) == [
        "\u4e00\u4e8c\uff0c",
        "\u4e09\u56db\u4e94",
    ]
    assert pieces_of("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_number_is_cut_only_if_it_is_longer_than_a_piece() -> None:
    assert pieces_of("abc123456", 6) == ["abc", "123456"]
    assert pieces_of("1" * 9, 6) == ["1" * 6, "1" * 3]
    assert pieces_of("for 1 000 000 men", 12) == ["for ", "1 000 000 ", "men"]


BLANK = {
    "nothing": "",
    "white space": " \t\n\u00a0\u2003\u3000",
    "no width": "\u200b\u200c\u200d\u2060\ufeff",
    "directions": "\u200e\u202e\u2066",
    "controls": "\x01\x7f\x85",
    "soft hyphens": "\u00ad",
    "fillers": "\u115f\u1160\u3164\uffa0\u2800",
    "marks alone": "\u0301\ufe0f\u034f",
    "tags": "\U000e0020\U000e007f",
}
SPOKEN = ["a", ".", "\u200ba", "1", "\u4f60", "\U0001f600", "e\u0301", "\uac00", "\u2026", "\u00a9"]


@pytest.mark.parametrize("text", BLANK.values(), ids=BLANK)
def test_what_shows_nothing_says_nothing(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", SPOKEN)
def test_what_shows_something_may_be_spoken(text: str) -> None:
    assert not is_blank(text)


def test_what_is_drawn_as_one_sign_is_not_cut() -> None:
    assert pieces_of("xxe\u0301e\u0301", 3) == ["xx", "e\u0301", "e\u0301"]
    family = "\U0001f469\u200d\U0001f469\u200d\U0001f466"
    assert pieces_of(f"x{family}", 5) == ["x", family]


@pytest.mark.parametrize(
    "text",
    ["." * 100_000, "1," * 50_000, "a " * 50_000, '."' * 50_000, "\n" * 100_000, "1 000" * 20_000],
)
def test_no_text_takes_long_to_cut(text: str) -> None:
    began = time.process_time()
    assert "".join(pieces_of(text, 1000)) == text
    assert time.process_time() - began < 2
