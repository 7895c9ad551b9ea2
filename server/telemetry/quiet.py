"""A quiet terminal: what stages print goes to files; of a start only what goes wrong is shown."""

import logging
from collections import defaultdict, deque
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rich.console import Console

from omnistage.server.telemetry.logs import LogFormat, LogLevel

MAX_FILE_BYTES = 16 << 20  # of a stage's log; the one before it is kept, too
KEPT_WARNINGS = 20  # of each stage
FILE_LINE = "%(asctime)s %(message)s"
WEB_SERVER = "uvicorn"  # the name of its logger


def is_quiet(console: Console, form: LogFormat, level: LogLevel) -> bool:
    """Returns whether a person looks on who did not ask for every line."""
    return console.is_terminal and form is LogFormat.TEXT and level is not LogLevel.DEBUG


class QuietTerminal(logging.Filter):
    """Keeps off the terminal what stages print and, until `has_started`, all that is no warning.

    The last warnings of each stage are kept for the case that it fails, and `notices` for the end
    of the start: messages of records that have a `notice`. A record with `is_shown` is shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_started = False
        self.notices: list[str] = []
        self._warnings: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_WARNINGS))

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is shown."""
        if record.levelno >= logging.ERROR or hasattr(record, "is_shown"):
            return True
        is_warning = record.levelno >= logging.WARNING
        if (stage := getattr(record, "stage", None)) is not None:
            if is_warning:
                self._warnings[stage].append(record.getMessage())
            return False
        if hasattr(record, "notice") and not self.has_started:
            self.notices.append(record.getMessage())
        is_of_web_server = record.name.partition(".")[0] == WEB_SERVER
        return is_warning or (self.has_started and not is_of_web_server)

    def warnings_of(self, stage: str) -> Sequence[str]:
        """Returns the last warnings that a stage printed."""
        return list(self._warnings.get(stage, ()))


class StageFiles(logging.Handler):
    """Writes what each stage prints to a file of its own, which replaces the last server's."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files: dict[str, logging.Handler] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line of a stage; one that cannot be written, as on a full disk, is lost."""
        stage = getattr(record, "stage", None)
        if stage is None:
            return
        if stage not in self._files:
            self._files[stage] = self._open(stage)
        self._files[stage].handle(record)

    def _open(self, stage: str) -> logging.Handler:
        path = self._folder / f"{stage}.log"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a server that runs goes on with the file that it has
            file = StageFile(path, maxBytes=MAX_FILE_BYTES, backupCount=1, encoding="utf-8")
        except OSError as error:
            logging.getLogger(__name__).warning(
                "the log of stage %s cannot be written: %s", stage, error
            )
            return logging.NullHandler()
        file.setFormatter(logging.Formatter(FILE_LINE))
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        super().close()


class StageFile(RotatingFileHandler):
    """The log file of one stage."""

    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        """Loses the line: an error in the log is no reason to disturb the terminal."""


def quieten(folder: Path) -> QuietTerminal:
    """Makes the handlers of the root logger quiet, and has stages' lines written to files."""
    quiet, root = QuietTerminal(), logging.getLogger()
    for handler in root.handlers:
        handler.addFilter(quiet)
    root.addHandler(StageFiles(folder))
    return quiet
