"""From what a person typed to a profile that can be taken; mistakes name the option."""

import os
from pathlib import Path

from omnistage.bench.commands.options import check_place
from omnistage.bench.profile.admin import Admin, read_key
from omnistage.bench.profile.session import Profiling

SUFFIX = ".json.gz"
SECONDS = 1.0


def make_profiling(
    url: str,
    file: Path | None,
    seconds: float | None,
    key_file: Path | None,
    num_levels: int,
) -> Profiling | None:
    """Returns what --profile asks for; None without it. Raises ValueError."""
    if file is None:
        for option, given in (("--profile-seconds", seconds), ("--admin-key-file", key_file)):
            if given is not None:
                raise ValueError(f"{option} has no effect without --profile")
        return None
    if num_levels > 1:
        raise ValueError(
            f"--profile is for one level, and {num_levels} were asked for: give one number to "
            "--concurrency, or to --rate"
        )
    check_place("--profile", file, SUFFIX)
    return Profiling(Admin(url, read_key(key_file, os.environ)), file, seconds or SECONDS)
