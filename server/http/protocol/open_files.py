"""Open files for connections: as many as the system lets a process have, and few words at the end.

Each connection is an open file, and shells and systemd begin with a limit of 1,024.
"""

import asyncio
import logging
import resource
from collections.abc import Mapping

logger = logging.getLogger(__name__)

MAX_OPEN_FILES = 65_536
FULL = "socket.accept() out of system resource"  # asyncio's words, thousands of times a second
SILENT_S = 60.0


def allow_open_files() -> None:
    """Raise the limit of this process, and of those that it starts, as far as it may itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class AcceptFailures:
    """Handles an event loop's exceptions; says once a minute that no connection can be accepted."""

    def __init__(self) -> None:
        self._silent_until = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        """Log what has happened in the loop."""
        if context.get("message") != FULL:
            loop.default_exception_handler(dict(context))
        elif loop.time() >= self._silent_until:
            self._silent_until = loop.time() + SILENT_S
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            logger.error(
                "no more connections can be accepted: the process may have %d open files "
                "(ulimit -n)",
                soft,
            )
