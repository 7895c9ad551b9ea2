"""Texts that a tokenizer writes as they are, told from those that it would write otherwise.

Many tokenizers normalize: Qwen's to NFC, which joins an `e` and the accent behind it, others to
NFKC. Where a grammar leaves no choice, llguidance asks the tokenizer for the tokens, and refuses
them if they spell something else than the grammar: the request would end in the middle.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import llguidance
import llguidance.hf

ASCII = f" {''.join(map(chr, range(32, 127)))}  a\t\n B "
# What NFC, NFKC and those that lower cases or join spaces write otherwise.
OFTEN_REWRITTEN = f"{ASCII}e\u0301 \u212b \u1112\u1161\u11ab \ufb01 \u00b2 \u00c9 \uac00"
ESCAPE = re.compile(r"\\[uUxXpP]")  # of a character of a pattern, by its number or kind
JAMO = range(0x1100, 0x1200)  # the letters that syllables of Hangul are made of

Keeps = Callable[[str, bool], bool]
"""Whether a text, or a pattern if the flag is true, is written as it is."""


def keeps_all(text: str, is_pattern: bool) -> bool:
    """Stand for a tokenizer that rewrites nothing."""
    return True


class KeptTexts:
    """Asks a tokenizer as llguidance does; making one takes a second for a large vocabulary."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        """Raises ValueError for a tokenizer that llguidance does not take."""
        own = getattr(tokenizer, "llg_tokenizer", None)  # Mistral's has one
        size = max(vocab_size, len(tokenizer))
        self._tokens: Any = own or llguidance.hf.from_tokenizer(tokenizer, size)
        self._keeps_ascii = self._writes(ASCII)
        self._keeps_all = self._writes(OFTEN_REWRITTEN)

    def keeps(self, text: str, is_pattern: bool) -> bool:
        """Returns whether a text is written as it is; false for a pattern that may make others."""
        if self._keeps_all:
            return True
        if is_pattern and (ESCAPE.search(text) or any(map(_may_join, text))):
            return False
        return self._keeps_ascii and (text.isascii() or self._writes(text))

    def _writes(self, text: str) -> bool:
        written: bytes = self._tokens.decode_bytes(self._tokens.tokenize_str(text))
        return written == text.encode()


def _may_join(character: str) -> bool:
    """Returns whether a character may become one with what a pattern makes before it."""
    return unicodedata.category(character).startswith("M") or ord(character) in JAMO
