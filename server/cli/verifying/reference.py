"""Runs the reference implementation in a process of its own, once the server has ended."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

import omnistage
from omnistage.stage_configs.packages import not_installed
from omnistage.stages.messages.to_reference import JOB, OUTCOME, Findings, ReferenceJob

# Ours come last, so that an environment of its own has its own libraries.
RUN = "import sys; sys.path.append(sys.argv.pop(1)); "
RUN_JOB = RUN + "from pathlib import Path; from omnistage.stages.reference.run import main; "
RUN_JOB += "main(Path(sys.argv[1]))"
FIND = "import sys; from importlib.util import find_spec; "
FIND += "print(*(name for name in sys.argv[1:] if find_spec(name) is None))"
SHOWN_LINES = 8


class NoReference(Exception):
    """The reference cannot be run, or has failed; the message says why."""


def check_packages(python: str, needs: Sequence[str]) -> None:
    """Raises NoReference if an interpreter lacks a package that a reference needs."""
    command = [python, "-c", FIND, *needs]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoReference(f"--reference-python {python}: {error}") from None
    for name in done.stdout.split():
        where = "" if python == sys.executable else f" for {python}"
        raise NoReference(
            f"the reference cannot be run{where}: {not_installed(name)}; --reference-python names "
            "another Python"
        )


def run_reference(python: str, job: ReferenceJob) -> Findings:
    """Returns what the reference found; raises NoReference if it failed."""
    package = Path(next(iter(omnistage.__path__))).parent
    with tempfile.TemporaryDirectory(prefix="omnistage-verify-") as place:
        folder = Path(place)
        (folder / JOB).write_bytes(msgspec.msgpack.encode(job))
        command = [python, "-c", RUN_JOB, str(package), place]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines()[-SHOWN_LINES:]
            raise NoReference("\n".join([f"the reference ended: {done.returncode}", *lines]))
        return msgspec.msgpack.decode((folder / OUTCOME).read_bytes(), type=Findings)
