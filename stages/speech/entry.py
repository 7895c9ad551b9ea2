"""The given text of a talker that is the entry of its graph."""

from omnistage.stages.messages.body import GivenText
from omnistage.stages.worker.stage import Opened

# Of a context: what the rows before the text may take, and how many a character may, as a token and
# as speech; digits are spoken longest.
RESERVED_ROWS, ROWS_A_CHARACTER = 512, 8


def given_text(opened: Opened) -> GivenText:
    """Return the body of a request to a talker that is the entry: a text to be spoken."""
    body = opened.request.body
    assert isinstance(body, GivenText), "the talker is the entry of speech alone"
    return body


def longest_text(max_model_len: int) -> int:
    """Return how many characters one request may have."""
    return max(max_model_len - RESERVED_ROWS, max_model_len // 2) // ROWS_A_CHARACTER
