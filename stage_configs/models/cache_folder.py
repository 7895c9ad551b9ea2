"""Where omnistage keeps files of a user between runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns omnistage's folder in the user's cache; it may not be there yet."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "omnistage"


def logs_folder() -> Path:
    """Returns where logs of stages are: of starts that failed, and of servers on a terminal."""
    return cache_folder() / "logs"
