"""Log lines, as text and as JSON."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from omnistage.server.common.trace import Trace, following
from omnistage.server.telemetry.logs import JsonLines, LogFormat, LogLevel, configure_logging

logger = logging.getLogger("omnistage.test_logs")


@pytest.fixture
def bare_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The root logger, put back afterwards as it was."""
    root, factory = logging.getLogger(), logging.getLogRecordFactory()
    level = root.level
    talkative = {name: logging.getLogger(name).level for name in ("httpx", "httpcore")}
    yield root
    root.handlers.clear()
    root.setLevel(level)
    logging.setLogRecordFactory(factory)
    for name, before in talkative.items():
        logging.getLogger(name).setLevel(before)


def lines_of(root: logging.Logger, form: LogFormat, level: LogLevel = LogLevel.INFO) -> io.StringIO:
    """Log as a server does, from its process's start; what it writes."""
    root.handlers.clear()
    configure_logging(Console(file=io.StringIO()), form, level)
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    written = io.StringIO()
    handler.setStream(written)
    return written


def test_a_line_of_text_says_whose_it_is(bare_root: logging.Logger) -> None:
    written = lines_of(bare_root, LogFormat.TEXT)
    logger.info("of nobody")
    with following(Trace("req_1")):
        logger.warning("of %s", "a request")
        logger.info("of a stage", extra={"stage": "thinker"})
    lines = [line.split(" ", 2)[2] for line in written.getvalue().splitlines()]
    assert lines == [
        "INFO of nobody",
        "WARNING [req_1] of a request",
        "INFO [thinker] of a stage",
    ]


def test_a_line_of_json_has_the_same_by_name(bare_root: logging.Logger) -> None:
    written = lines_of(bare_root, LogFormat.JSON)
    logger.info("of nobody\nin two lines")
    with following(Trace("req_1")):
        logger.warning("of a request", extra={"request": {"status": 200, "seconds": 0.5}})
        logger.error("of a stage", extra={"stage": "thinker"})
    plain, request, stage = map(json.loads, written.getvalue().splitlines())
    assert plain.keys() == {"time", "level", "logger", "message"}
    assert plain["message"] == "of nobody\nin two lines"
    assert plain["logger"] == "omnistage.test_logs"
    assert (request["level"], request["request_id"]) == ("warning", "req_1")
    assert (request["status"], request["seconds"]) == (200, 0.5)
    assert (stage["level"], stage["stage"]) == ("error", "thinker")
    assert "request_id" not in stage


def test_a_traceback_is_one_line_of_json(bare_root: logging.Logger) -> None:
    written = lines_of(bare_root, LogFormat.JSON)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    (line,) = written.getvalue().splitlines()
    assert json.loads(line)["exception"].endswith("ValueError: no")


def test_json_lines_of_records_that_nobody_filtered() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "said %d", (1,), None)
    assert json.loads(JsonLines().format(record))["message"] == "said 1"


@pytest.mark.parametrize(
    ("level", "said"),
    [(LogLevel.DEBUG, 4), (LogLevel.INFO, 3), (LogLevel.WARNING, 2), (LogLevel.ERROR, 1)],
)
def test_what_is_below_the_level_is_not_said(
    level: LogLevel, said: int, bare_root: logging.Logger
) -> None:
    written = lines_of(bare_root, LogFormat.TEXT, level)
    for say in (logger.debug, logger.info, logger.warning, logger.error):
        say("a line")
    assert len(written.getvalue().splitlines()) == said


@pytest.mark.parametrize(("level", "is_told"), [(LogLevel.INFO, False), (LogLevel.DEBUG, True)])
def test_addresses_that_media_are_fetched_from_are_told_for_debugging_only(
    level: LogLevel, is_told: bool, bare_root: logging.Logger
) -> None:
    written = lines_of(bare_root, LogFormat.TEXT, level)
    logging.getLogger("httpx").info("HTTP Request: GET http://example.org/?token=1")
    assert bool(written.getvalue()) is is_told


def test_on_a_terminal_lines_leave_room_for_the_clocks(bare_root: logging.Logger) -> None:
    written = io.StringIO()
    bare_root.handlers.clear()
    configure_logging(Console(file=written, force_terminal=True, width=80))
    with following(Trace("req_1")):
        logger.info("a line")
    assert "[req_1] a line" in re.sub("\x1b.*?m", "", written.getvalue())


def test_a_server_that_exports_nothing_imports_no_opentelemetry() -> None:
    program = (
        "import sys, omnistage.server.serve, omnistage.server.app, omnistage.server.cli\n"
        "assert omnistage.server.endpoints.gateway.exporter_to(None) is None\n"
        "sys.exit(' '.join(name for name in sys.modules if name.startswith('opentelemetry')) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
