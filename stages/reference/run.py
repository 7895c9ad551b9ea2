"""The process of a reference implementation: it reads a job, and writes what was found."""

import sys
from pathlib import Path
from pkgutil import resolve_name

import msgspec

from omnistage.stages.messages.to_reference import JOB, OUTCOME, ReferenceJob


def main(folder: Path) -> None:
    """Does the job of a folder."""
    job = msgspec.msgpack.decode((folder / JOB).read_bytes(), type=ReferenceJob)
    outcome = resolve_name(job.path)(job)
    (folder / OUTCOME).write_bytes(msgspec.msgpack.encode(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
