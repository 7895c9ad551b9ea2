"""What is left of long texts in errors and in logs."""

import json
import logging
from collections.abc import Iterator

import pytest

from omnistage.server.common.errors import ApiError, invalid, unsupported
from omnistage.stages.messages.log_bound import MAX_LOG_CHARACTERS, bound_logs, shortened


@pytest.mark.parametrize("character", ["a", "é", "\U0001f600", "\0", '"', "\\", "\n"])
@pytest.mark.parametrize("length", [10, 199, 200, 201, 100_000])
def test_a_text_is_as_short_as_is_asked_in_json(character: str, length: int) -> None:
    text = "the head " + character * length + " the tail"
    short = shortened(text, 200)
    assert len(json.dumps(short, ensure_ascii=False).encode()) <= 202
    assert short.startswith("the head")
    assert short.endswith("the tail")
    assert (short == text) == (len(json.dumps(text, ensure_ascii=False).encode()) <= 202)


@pytest.mark.parametrize("text", ["x", "\0", "\U0001f600", "\ud800"])
def test_no_error_is_longer_than_2_kb(text: str) -> None:
    long = text * 1_000_000
    for error in (ApiError(400, long, param=long), invalid(long, long), unsupported(long)):
        assert len(json.dumps(error.envelope, ensure_ascii=False).encode(errors="replace")) < 2048
    assert "is not so" in invalid(long, "is not so").message


@pytest.fixture
def bounded() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    bound_logs()
    yield
    logging.setLogRecordFactory(before)


def test_long_messages_and_tracebacks_are_logged_in_part(
    bounded: None, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger(__name__)
    try:
        raise ValueError("y" * 1_000_000)
    except ValueError:
        logger.exception("it says %s.", "x" * 1_000_000)
    logger.warning("short %d", 3)
    assert len(caplog.text) < 3 * MAX_LOG_CHARACTERS
    assert "it says xxx" in caplog.text
    assert "Traceback" in caplog.text
    assert "short 3" in caplog.text
