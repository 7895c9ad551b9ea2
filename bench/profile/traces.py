"""Reads the traces of torch's profiler: one file is what one process did."""

import gzip
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

NO_NUMBER = re.compile(rb"(?<=[:,\[ ])-?(?:nan|inf|NaN|Infinity)(?=[,}\] \n])")
POLL_S = 0.25
NOTHING = msgspec.Raw(b"")
NOT_WHOLE = (EOFError, zlib.error, gzip.BadGzipFile)


class TraceError(ValueError):
    """A trace that cannot be read; the message is for a person."""


class TraceEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """One event in Chrome's format; `ts` and `dur` are microseconds."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    id: int | str | None = None
    bp: str | None = None
    s: str | None = None
    args: msgspec.Raw = NOTHING

    def argument(self, name: str) -> Any:
        """One of `args`; None if it has none of that name."""
        found = None if self.args is NOTHING else msgspec.json.decode(self.args)
        return found.get(name) if isinstance(found, dict) else None


class _File(msgspec.Struct):
    traceEvents: list[msgspec.Raw]
    baseTimeNanoseconds: int = 0


EVENT = msgspec.json.Decoder(TraceEvent)
FILE = msgspec.json.Decoder(_File)


class ProfileTrace:
    """The events of one file, on a clock of microseconds that begins at an epoch."""

    def __init__(self, content: bytes, epoch_ns: int, name: str) -> None:
        """`epoch_ns`: of the host's clock. Raises TraceError for what is no trace."""
        file = _decoded(content, name)
        self._events = file.traceEvents
        self._start_us = (file.baseTimeNanoseconds - epoch_ns) / 1e3
        self.num_skipped = 0

    def __iter__(self) -> Iterator[TraceEvent]:
        """One after the other; what is no event is left out and counted in `num_skipped`."""
        for raw in self._events:
            try:
                event = EVENT.decode(raw)
            except msgspec.MsgspecError:
                self.num_skipped += 1
                continue
            if event.ts is not None:
                event.ts += self._start_us
            yield event


def read_trace(path: Path, epoch_ns: int, patience_s: float) -> ProfileTrace:
    """The trace of a file, once it is whole; TraceError if it is not within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            content = _content(path)
        except NOT_WHOLE:
            content = b""
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror or error}") from None
        if content.rstrip().endswith(b"}"):
            return ProfileTrace(content, epoch_ns, str(path))
        if time.monotonic() > deadline:
            raise TraceError(f"{path} was not whole after {patience_s:g} s")
        time.sleep(POLL_S)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def _decoded(content: bytes, name: str) -> _File:
    """A file's events; torch may write numbers that are none, and names in no encoding."""
    try:
        return FILE.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        mended = NO_NUMBER.sub(b"null", content.decode("utf-8", "replace").encode())
    try:
        return FILE.decode(mended)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{name} is no trace of torch's profiler: {error}") from None
