"""Texts as BAGEL reads and writes them: each between its marks, without roles."""

from collections.abc import Sequence
from typing import Any

from omnistage.stages.bagel.settings import MARKS
from omnistage.stages.worker.failure import RequestError

START, END = MARKS[:2]
THINKING = (
    "You should first think about the planning process in the mind and then generate the image. \n"
    "The planning process is enclosed within <think> </think> tags, i.e. "
    "<think> planning process here </think> image here"
)
REASONING = (
    "You should first think about the reasoning process in the mind and then provide the user with "
    "the answer. \nThe reasoning process is enclosed within <think> </think> tags, i.e. "
    "<think> reasoning process here </think> answer here"
)
MAX_THINK_TOKENS = 1000


def check_text(tokenizer: Any, text: str, param: str = "prompt") -> None:
    """Raise RequestError for a text that has one of the model's own marks."""
    own = set(tokenizer.all_special_tokens) | set(MARKS)
    found = next((one for one in sorted(own) if one in text), None)
    if found is not None:
        message = f"{param}: {found} is a token of the model, which no prompt may have"
        raise RequestError(400, message, param=param, code="invalid_value")


def said_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return what the model has written, up to its end, without the start that was given to it."""
    text: str = tokenizer.decode(ids)
    return text.split(END)[0].split(START)[0]


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text between its marks."""
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    return [start, *tokenizer.encode(text, add_special_tokens=False), end]
