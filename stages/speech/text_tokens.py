"""Tokens of a text that comes in pieces: those of the whole text, as early as they are known.

A byte-level tokenizer splits a text by a pattern into words, and makes tokens of each alone. So a
text may be cut wherever the pattern splits it and nothing that comes later can join the two sides:

- before a space that follows something else than white space;
- behind letters or digits, before something else;
- between letters of a script without spaces, if no token of the vocabulary can lie across.
"""

import unicodedata
from bisect import bisect_left

from transformers import AutoTokenizer

SPLIT = "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"  # of Qwen's pattern
COMPOSED = 4  # characters before a place that may become one with the next: Hangul has two
LOOK_BACK = 64  # characters: how far behind the end a cut is looked for
NO_CASE = "Lo"  # letters of scripts without upper and lower case
MARK, UNASSIGNED, SPACE = "M", "Cn", "Zs"


class TextTokenizer:
    """A checkpoint's tokenizer, for texts in which a special token's name is text like any other.

    Raises ValueError for one that splits texts in another way than Qwen's.
    """

    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
        backend = self._tokenizer.backend_tokenizer
        if SPLIT not in backend.pre_tokenizer.__getstate__().decode().replace("\\\\", "\\"):
            raise ValueError(f"the tokenizer in {folder} does not split texts as Qwen's does")
        added = backend.get_added_tokens_decoder().values()
        self._added = sorted(token.content for token in added)
        self._words = _words_of(backend.get_vocab(with_added_tokens=False))
        self._known = frozenset(self._words)
        self._longest = max(map(len, self._words), default=0)

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a whole text."""
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    def special(self, name: str) -> int:
        """The id of a special token."""
        token_id: int = self._tokenizer.convert_tokens_to_ids(name)
        return token_id

    def cut(self, text: str, num_seen: int) -> int:
        """How many leading characters keep their tokens whatever follows the text.

        In the first `num_seen` no cut was found before.
        """
        for place in range(len(text) - 1, max(0, num_seen - LOOK_BACK), -1):
            if self._is_cut(text, place) and not self._is_in_added(text, place):
                return place
        return 0

    def _is_cut(self, text: str, place: int) -> bool:
        before, behind = text[place - 1], text[place]
        kinds = unicodedata.category(before), unicodedata.category(behind)
        if behind == "\t" or kinds[1] == SPACE:
            return not before.isspace()
        if UNASSIGNED in kinds or kinds[1][0] == MARK:
            return False
        if kinds == (NO_CASE, NO_CASE):
            is_near = len(text) - place <= LOOK_BACK
            head = text[max(0, place - COMPOSED) : place]
            return is_near and _stay_apart(head, behind) and not self._is_in_word(text, place)
        return kinds[0][0] in "LN" and kinds[1][0] != kinds[0][0]

    def _is_in_added(self, text: str, place: int) -> bool:
        """Returns whether an added token, which the pattern does not split, may lie across a
        place.
        """
        head, rest = text[:place], text[place:]
        return any(
            head.endswith(token[:size]) and _may_begin(rest, token[size:])
            for token in self._added
            for size in range(1, min(len(token), place + 1))
        )

    def _is_in_word(self, text: str, place: int) -> bool:
        """Returns whether a token of the vocabulary may lie across a place."""
        head, rest = text[max(0, place - LOOK_BACK) : place].encode(), text[place:].encode()
        for size in range(1, min(len(head) + 1, self._longest)):
            begun = head[-size:] + rest
            if self._begins_word(begun):
                return True
            ends = range(size + 1, min(len(begun), self._longest) + 1)
            if any(begun[:end] in self._known for end in ends):
                return True
        return False

    def _begins_word(self, begun: bytes) -> bool:
        place = bisect_left(self._words, begun)
        return place < len(self._words) and self._words[place].startswith(begun)


class TextTokens:
    """One text's tokens as its pieces come."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = ""
        self._num_seen = 0
        self.count = 0  # of the tokens that were given

    def add(self, text: str) -> list[int]:
        """The tokens that are known with the next piece."""
        self._held += text
        place = self._tokenizer.cut(self._held, self._num_seen)
        ready, self._held = self._held[:place], self._held[place:]
        self._num_seen = len(self._held)
        return self._given(ready)

    def finish(self) -> list[int]:
        """Returns the tokens of the rest."""
        ready, self._held = self._held, ""
        return self._given(ready)

    def _given(self, text: str) -> list[int]:
        token_ids = self._tokenizer.tokens(text) if text else []
        self.count += len(token_ids)
        return token_ids


def _words_of(vocabulary: dict[str, int]) -> list[bytes]:
    """The bytes of tokens that are not of ASCII alone, sorted."""
    bytes_of = {ord(character): byte for byte, character in _byte_characters().items()}
    words = (word for word in vocabulary if all(ord(one) in bytes_of for one in word))
    encoded = (bytes(bytes_of[ord(one)] for one in word) for word in words)
    return sorted(word for word in encoded if len(word) > 1 and not word.isascii())


def _byte_characters() -> dict[int, str]:
    """The printable stand-in for each byte, by which a vocabulary names it."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


def _stay_apart(before: str, behind: str) -> bool:
    """Returns whether normalization makes no character of the last ones and the next."""
    apart = unicodedata.normalize("NFC", before) + unicodedata.normalize("NFC", behind)
    return unicodedata.normalize("NFC", before + behind) == apart


def _may_begin(text: str, expected: str) -> bool:
    """Returns whether a text may be, or become, one that begins as expected."""
    return text.startswith(expected) or expected.startswith(text)
