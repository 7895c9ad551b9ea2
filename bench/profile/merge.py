"""Traces of several processes as one, for Perfetto or Chrome: a process for each, on one clock."""

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from omnistage.bench.profile.traces import TraceEvent

WRITTEN_AT_ONCE = 10_000  # events
LEVEL = 3  # of compression: a trace is large, and is read once
FLOWS = 1 << 40  # numbers of arrows that a process may have
FLOW_PHASES = ("s", "t", "f")
GPU_ROWS = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
BELOW = 1_000  # where rows of threads begin
ENCODER = msgspec.json.Encoder()


class MergedTrace:
    """Writes a trace that is gzipped; a context, which has to end without an error to leave it."""

    def __init__(self, path: Path, epoch_ns: int) -> None:
        """`epoch_ns`: what the events' times count from. Raises OSError."""
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._file = gzip.GzipFile(self._part, "wb", compresslevel=LEVEL)
        head = f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{epoch_ns},"traceEvents":['
        self._file.write(head.encode())
        self._separator = b"\n"
        self._num_processes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with self._file:
                self._file.write(b"\n]}\n")
            if error is None:
                self._part.replace(self._path)
        finally:
            self._part.unlink(missing_ok=True)

    def passed(self, name: str, events: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
        """The events of one process as they came, each written when the next one is asked for."""
        self._num_processes += 1
        rows = _Rows(self._num_processes, name)
        lines: list[bytes] = []
        for event in events:
            yield event
            if rows.place(event):
                lines.append(ENCODER.encode(event))
            if len(lines) >= WRITTEN_AT_ONCE:
                self._write(lines)
                lines = []
        self._write([*lines, *map(ENCODER.encode, rows.names())])

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            self._file.write(self._separator + b",\n".join(lines))
            self._separator = b",\n"


class _Rows:
    """The rows of one process: a thread of its own for each thread and each stream of a GPU."""

    def __init__(self, pid: int, name: str) -> None:
        self._pid = pid
        self._name = name
        self._numbers: dict[tuple[object, object], int] = {}
        self._of_gpu: set[int] = set()
        self._threads: dict[tuple[object, object], str] = {}
        self._labels: dict[object, str] = {}

    def place(self, event: TraceEvent) -> bool:
        """Put an event into its row; False for one that only names something."""
        key = event.pid, event.tid
        if event.ph == "M":
            self._learn(event)
            return False
        if event.ts is None:
            return False
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        if event.cat in GPU_ROWS:
            self._of_gpu.add(number)
        event.pid, event.tid = self._pid, number
        event.ts = round(event.ts, 3)
        if event.ph in FLOW_PHASES and isinstance(event.id, int):
            event.id = event.id % FLOWS + self._pid * FLOWS
        return True

    def _learn(self, event: TraceEvent) -> None:
        if event.name == "thread_name":
            self._threads[event.pid, event.tid] = str(event.argument("name"))
        elif event.name == "process_labels":
            self._labels[event.pid] = str(event.argument("labels"))

    def names(self) -> Iterator[TraceEvent]:
        """Returns what the process and its rows are called; streams of a GPU stand first."""
        yield self._named("process_name", 0, name=self._name)
        yield self._named("process_sort_index", 0, sort_index=self._pid)
        for key, number in self._numbers.items():
            pid, tid = key
            is_of_gpu = number in self._of_gpu
            own = self._threads.get(key, f"{pid} {tid}")
            label = self._labels.get(pid, "") if is_of_gpu else ""
            yield self._named("thread_name", number, name=f"{label} {own}".strip())
            index = number if is_of_gpu else number + BELOW
            yield self._named("thread_sort_index", number, sort_index=index)

    def _named(self, what: str, tid: int, **arguments: object) -> TraceEvent:
        raw = msgspec.Raw(ENCODER.encode(arguments))
        return TraceEvent(ph="M", name=what, pid=self._pid, tid=tid, args=raw)
