"""The server's log: as text or as JSON, each line with the request or the stage that it is of."""

import json
import logging
import os
from datetime import UTC, datetime
from enum import StrEnum

from rich.console import Console
from rich.logging import RichHandler

from omnistage.server.common.trace import named_trace
from omnistage.stages.messages.log_bound import LOG_LEVEL, bound_logs

TEXT = "%(whose)s%(message)s"
TEXT_WITH_TIME = f"%(asctime)s %(levelname)s {TEXT}"
TALKATIVE = ("httpx", "httpcore")  # they tell each address that they fetch from


class LogFormat(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The levels of the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure_logging(
    console: Console, form: LogFormat = LogFormat.TEXT, level: LogLevel = LogLevel.INFO
) -> None:
    """Log to the console; text on a terminal in a way that leaves the clocks at the bottom."""
    bound_logs()
    handler: logging.Handler
    if form is LogFormat.JSON:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
    elif console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
        handler.setFormatter(logging.Formatter(TEXT))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(TEXT_WITH_TIME))
    handler.addFilter(say_whose)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in TALKATIVE:
        told = logging.NOTSET if level is LogLevel.DEBUG else logging.WARNING
        logging.getLogger(name).setLevel(told)


def say_whose(record: logging.LogRecord) -> bool:
    """Put into a record what it is of: the stage that it names, else the request of this task."""
    trace = named_trace()
    stage = getattr(record, "stage", None)
    request_id = None if trace is None or stage is not None else trace.request_id
    whose = stage or request_id
    vars(record).update(request_id=request_id, whose=f"[{whose}] " if whose else "")
    return True


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        known = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
            "stage": getattr(record, "stage", None),
            **getattr(record, "request", {}),
            "exception": self._exception(record),
        }
        said = {name: value for name, value in known.items() if value is not None}
        return json.dumps(said, ensure_ascii=False)

    def _exception(self, record: logging.LogRecord) -> str | None:
        if record.exc_text:
            return record.exc_text
        is_there = record.exc_info is not None and record.exc_info[0] is not None
        return self.formatException(record.exc_info) if is_there and record.exc_info else None


def log_environment(level: LogLevel) -> dict[str, str]:
    """Returns what stages are told of their own lines, and vLLM of its, unless it was told already.

    A variable of the server's own option is theirs by name: they read it in capitals.
    """
    if level is LogLevel.INFO and LOG_LEVEL not in os.environ:
        return {}
    name = level.upper()
    return {LOG_LEVEL: name, "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", name)}
