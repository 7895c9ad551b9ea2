"""Bounds what one request can write: texts of clients come back in errors and in logs.

Every process of a server calls `bound_logs` before it logs: the gateway, the stages, and, through
vLLM's plugins, its engines.
"""

import json
import logging
import traceback
from typing import Any

LOG_LEVEL = "OMNISTAGE_LOG_LEVEL"  # in the environment of a stage: of its own lines
MAX_LOG_CHARACTERS = 4096
# Of an error's text and of the field that it names: as JSON both together stay below 2 KB.
MAX_MESSAGE_BYTES = 1200
MAX_PARAM_BYTES = 400
BYTES_A_CHARACTER = 6  # of JSON, at most: \u0000


def shortened(text: str, max_bytes: int) -> str:
    """The text, or its head and tail, such that it takes at most `max_bytes` in a JSON string."""
    if len(text) * BYTES_A_CHARACTER <= max_bytes:
        return text
    if len(text) <= max_bytes and _num_bytes(text) <= max_bytes:
        return text
    note = f" [{len(text)} characters in all] "
    tail = max_bytes // 4
    head = max_bytes - tail - len(note)
    return _fitting(text, head) + note + _fitting(text[: -tail - 1 : -1], tail)[::-1]


def _num_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) - 2


def _fitting(text: str, max_bytes: int) -> str:
    """Returns the longest beginning that fits; each round drops the excess, or half of it."""
    text = text[:max_bytes]
    while (excess := _num_bytes(text) - max_bytes) > 0:
        text = text[: -(excess // BYTES_A_CHARACTER + 1)]
    return text


class BoundRecords:
    """Makes records as it was done before, and cuts their messages and tracebacks."""

    def __init__(self) -> None:
        self._make = logging.getLogRecordFactory()

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # wrong arguments, which logging itself tells of
            return record
        if len(message) > MAX_LOG_CHARACTERS:
            record.msg, record.args = shortened_lines(message), ()
        if record.exc_info and record.exc_info[0] is not None:
            # A formatter takes this text before it makes one of `exc_info`.
            record.exc_text = shortened_lines("".join(traceback.format_exception(*record.exc_info)))
        return record


def shortened_lines(text: str) -> str:
    """At most `MAX_LOG_CHARACTERS` of a text: its head and its tail."""
    if len(text) <= MAX_LOG_CHARACTERS:
        return text.rstrip("\n")
    half = MAX_LOG_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text)} characters in all]\n{text[-half:]}".rstrip("\n")


def bound_logs() -> None:
    """Bound each record that this process logs from now on."""
    if not isinstance(logging.getLogRecordFactory(), BoundRecords):
        logging.setLogRecordFactory(BoundRecords())
