"""Reads media below one folder of the server, by file URLs."""

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from omnistage.server.media.fetch import TOO_LARGE, MediaRefused

REFUSAL = "names no file below the allowed folder"
NOT_READ = (
    "is a file URL, which this server does not read: start it with --allowed-media-path, or send a "
    "data: URL"
)


class MediaFolder:
    """The files that clients may name, below `root`; none without a root."""

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.resolve(strict=True)

    def check(self, url: str) -> Path:
        """The path in a file URL; raises MediaRefused."""
        if self._root is None:
            raise MediaRefused(NOT_READ)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise MediaRefused(f"is no valid URL: {error}") from error
        path = Path(unquote(parts.path))
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise MediaRefused("must be file:///PATH")
        if not path.is_absolute() or "\0" in str(path):
            raise MediaRefused(REFUSAL)
        return path

    def read(self, path: Path, max_bytes: int) -> bytes:
        """A file's bytes; raises MediaRefused."""
        try:
            self._check_place(path.resolve(strict=True))
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                return self._read(descriptor, max_bytes)
            finally:
                os.close(descriptor)
        except (OSError, RuntimeError) as error:
            raise MediaRefused(REFUSAL) from error

    def _read(self, descriptor: int, max_bytes: int) -> bytes:
        # What was opened counts: the path may lead elsewhere by now.
        self._check_place(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MediaRefused(REFUSAL)
        if status.st_size > max_bytes:
            raise MediaRefused(TOO_LARGE)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)

    def _check_place(self, path: Path) -> None:
        assert self._root is not None
        if not path.is_relative_to(self._root):
            raise MediaRefused(REFUSAL)
