"""Cuts a text of any length into pieces that are spoken one after the other.

A cut is made at the end of a sentence where there is one, so that each piece is spoken as a whole;
else at a comma, between two words, or where the piece is full. The pieces joined are the text.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

# Each pattern ends where a cut may be. Latin signs end something only before white space, so that
# `3.14` and `example.org` are whole; those of Chinese and Japanese need none behind them.
SENTENCE = re.compile(
    r"(?:(?<![.!?\u2026\u0964\u061f\u06d4])[.!?\u2026\u0964\u061f\u06d4]+[\"'\u2019\u201d\u00bb)\]]*(?=\s)"
    r"|[\u3002\uff01\uff1f\uff61]+[\u201d\u2019\u300d\u300f\uff09\u3011\u300b]*"
    r"|\n)\s*"
)
CLAUSE = re.compile(
    r"(?:[,;:\u060c\u061b][\"'\u2019\u201d\u00bb)\]]*(?=\s)|[\uff0c\u3001\uff1b\uff1a\u2014])\s*"
)
WORD = re.compile(r"\s+")
NUMBER = re.compile(r"\d+(?:[.,:'\u2019\uff0e\uff0c/]\d+|[ \u00a0\u202f]\d{3}(?!\d))*")
# The word before a full stop that ends no sentence: one letter, letters with stops between them, an
# ordinal number, or one of these.
ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'\u201c\u201e])"
    r"(?:[^\W\d_]|(?:[^\W\d_]+\.)+[^\W\d_]+|\d{1,2}"
    r"|mrs?|ms|dr|prof|st|jr|sr|vs|etc|no|nr|fig|vol|pp?|al|ca|ung|bzw|usw|str|mme|mlle|sra?)\.$",
    re.IGNORECASE,
)
ABBREVIATION_CHARACTERS = 24  # as many before a stop are looked at
JOINER = "\u200d"
NOTHING = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me", "Mc"})  # categories


# Letters that are drawn as nothing: Hangul's fillers, and Braille's blank.
BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")


def is_blank(text: str) -> bool:
    """Return whether a text says nothing: spaces, signs of no width, marks without a letter."""
    return all(sign in BLANKS or unicodedata.category(sign) in NOTHING for sign in text)


def pieces_of(text: str, max_characters: int) -> list[str]:
    """The text in pieces of at most so many characters; none is empty but that of an empty text."""
    return list(_pieces(text, max_characters)) or [text]


def _pieces(text: str, max_characters: int) -> Iterator[str]:
    cuts = Cuts(text) if len(text) > max_characters else None
    start = 0
    while cuts is not None and len(text) - start > max_characters:
        end = cuts.last_between(start, start + max_characters)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


class Cuts:
    """Where a text may be cut, the best kind of place first."""

    def __init__(self, text: str) -> None:
        self._text = text
        numbers = [found.span() for found in NUMBER.finditer(text)]
        self._number_starts = [start for start, _ in numbers]
        self._number_ends = [end for _, end in numbers]
        self._places = [
            [place for place in found if not self._is_in_number(place)]
            for found in (sentence_ends(text), _ends(CLAUSE, text), _ends(WORD, text))
        ]

    def last_between(self, start: int, limit: int) -> int:
        """The last good place behind `start`, up to `limit`."""
        for places in self._places:
            index = bisect_right(places, limit)
            if index and places[index - 1] > start:
                return places[index - 1]
        return self._inside_a_word(start, limit)

    def _inside_a_word(self, start: int, limit: int) -> int:
        """Between two characters that are neither of one number nor drawn as one."""
        end = limit
        while end > start and (self._is_in_number(end) or is_joined(self._text, end)):
            end -= 1
        return end if end > start else limit

    def _is_in_number(self, place: int) -> bool:
        index = bisect_left(self._number_starts, place) - 1
        return index >= 0 and place < self._number_ends[index]


def sentence_ends(text: str, start: int = 0) -> list[int]:
    """The places behind each sentence from `start` on, and the white space that follows it."""
    return [found.end() for found in SENTENCE.finditer(text, start) if _is_end(text, found)]


def _is_end(text: str, found: re.Match[str]) -> bool:
    """Returns whether a sentence ends: with no abbreviation, and before no small letter."""
    if "\n" in found.group():
        return True
    stop = found.start() + 1
    before = text[max(0, stop - ABBREVIATION_CHARACTERS) : stop]
    is_abbreviated = found.group().rstrip() == "." and ABBREVIATION.search(before) is not None
    return not is_abbreviated and not text[found.end() : found.end() + 1].islower()


def _ends(pattern: re.Pattern[str], text: str) -> list[int]:
    return [found.end() for found in pattern.finditer(text)]


def is_joined(text: str, place: int) -> bool:
    """Returns whether what is drawn as one sign lies on both sides: an accent, or an emoji of
    several.
    """
    after = text[place]
    is_mark = unicodedata.category(after).startswith("M") or after == JOINER
    return is_mark or text[place - 1] == JOINER
