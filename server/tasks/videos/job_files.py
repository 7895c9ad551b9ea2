"""The folders of jobs: one for each, with its description and its files.

A folder is complete or not there: it is made, and removed, under another name. Its description is
replaced whole, after the files that it names.
"""

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from omnistage.server.tasks.videos.job import FILES, VERSION, JobError, VideoJob

logger = logging.getLogger(__name__)

PREFIX = "video_"
HIDDEN = ".video_"  # what is being made or removed
ABOUT, UNFINISHED = "job.json", ".unfinished"
KEPT = frozenset({ABOUT, *(name for name, _ in FILES.values())})
INTERRUPTED = JobError("server_restarted", "The server was restarted before the video was made.")


class JobFiles:
    """The jobs in one folder, of which other files and folders stay as they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def jobs(self) -> Iterator[VideoJob]:
        """Yield the jobs of an earlier server, in no order: those that had not ended have failed.

        What a killed server left behind is removed, and so is a job without its description or
        files, which the log names.
        """
        for left in self._folder.glob(f"{HIDDEN}*"):
            shutil.rmtree(left, ignore_errors=True)
        for path in list(self._folder.glob(f"{PREFIX}*")):
            try:
                job = _described(path)
                if not job.has_ended:
                    job = job.failed(INTERRUPTED)
                    self._describe(job)
                self._clean(path, KEPT if job.status == "completed" else {ABOUT})
            except (OSError, ValueError) as error:
                logger.warning("%s is no video and is removed: %s", path, error)
                self.remove(path.name)
                continue
            yield job

    def create(self, job: VideoJob, files: Mapping[str, bytes]) -> None:
        """Make the folder of a new job with its media; raises OSError, and leaves nothing then."""
        making = self._folder / f".{job.id}{UNFINISHED}"
        try:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            making.mkdir(0o700)
            for name, data in files.items():
                _write(making / name, data)
            _write(making / ABOUT, msgspec.json.encode(job))
            making.rename(self._path(job.id))
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise

    def end(self, job: VideoJob, files: Mapping[str, bytes]) -> None:
        """Keep how a job ended, and its files in place of its media; raises OSError."""
        path = self._path(job.id)
        for name, data in files.items():
            _write(path / name, data)
        self._describe(job)
        self._clean(path, {ABOUT, *files})

    def read(self, job_id: str, name: str) -> bytes:
        """Return a file of a job; raises OSError."""
        return (self._path(job_id) / name).read_bytes()

    def open(self, job_id: str, name: str) -> int:
        """Open a file of a job for reading; returns its descriptor, raises OSError."""
        return os.open(self._path(job_id) / name, os.O_RDONLY | os.O_CLOEXEC)

    def remove(self, job_id: str) -> None:
        """Remove a job's folder, if it is there; a failure is logged."""
        hidden = self._folder / f".{job_id}{UNFINISHED}"
        try:
            self._path(job_id).rename(hidden)
            shutil.rmtree(hidden)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.error("video %s cannot be removed: %s", job_id, error)

    def _describe(self, job: VideoJob) -> None:
        path = self._path(job.id)
        unfinished = path / f"{ABOUT}{UNFINISHED}"
        _write(unfinished, msgspec.json.encode(job))
        unfinished.replace(path / ABOUT)

    def _clean(self, path: Path, kept: Collection[str]) -> None:
        for entry in path.iterdir():
            if entry.name not in kept:
                entry.unlink(missing_ok=True)

    def _path(self, job_id: str) -> Path:
        return self._folder / job_id


def _described(path: Path) -> VideoJob:
    """Read the description of a folder; raises OSError, and ValueError for one that is none."""
    job = msgspec.json.decode((path / ABOUT).read_bytes(), type=VideoJob)
    if job.version != VERSION:
        raise ValueError(f"it is of version {job.version}; this server reads {VERSION}")
    if job.id != path.name:
        raise ValueError("it has another name than its video")
    missing = [name for name, _ in FILES.values() if not (path / name).is_file()]
    if job.status == "completed" and missing:
        raise ValueError(f"it has no {missing[0]}")
    return job


def _write(path: Path, data: bytes) -> None:
    """Write a new file to the disk."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
