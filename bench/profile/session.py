"""A profile of a server's stages in the middle of a level."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnistage.bench.client import ServerError
from omnistage.bench.commands.outcome import warn
from omnistage.bench.profile.admin import BUSY, SERVE_WITH, Admin, Refused, StoppedProfile
from omnistage.bench.profile.figures import Profile, Recorded, profile_of
from omnistage.bench.profile.merge import MergedTrace
from omnistage.bench.profile.traces import TraceError, read_trace

PREFIX = "bench"
REHEARSAL_S = 0.1
TRACE_PATIENCE_S = 60.0
ANSWERED_BEFORE = 3  # a third of the requests


@dataclass(frozen=True, slots=True)
class Profiling:
    """`file`: where the merged trace goes, .json.gz. `seconds`: how long stages record."""

    admin: Admin
    file: Path
    seconds: float

    async def rehearse(self) -> None:
        """Profile the idle server for a moment; ServerError if that cannot be done, or read.

        The first profile of a process on a GPU also takes seconds to begin.
        """
        try:
            await self._start_first()
            await asyncio.sleep(REHEARSAL_S)
        except BaseException:  # some stages may record all the same
            await self.stop_if_any()
            raise
        try:
            _check(await self.admin.stop())
        except TraceError as error:
            raise ServerError(f"--profile: {error}") from None

    async def _start_first(self) -> None:
        """Start; a profile that was begun and never ended is ended first."""
        try:
            await self.admin.start(PREFIX)
        except Refused as error:
            if error.status != BUSY:
                raise
            if await self.stop_if_any():
                warn("--profile: a profile of this server's stages ran already, and was ended")
            await self.admin.start(PREFIX)

    async def stop_if_any(self) -> bool:
        """Have all stages end their profiles; whether one has."""
        try:
            await self.admin.stop()
        except Refused:
            return False
        return True

    def begin(self, num_requests: int) -> "ProfileRecording":
        """Wait for the middle of a level of so many requests, and record then."""
        return ProfileRecording(self, num_requests // ANSWERED_BEFORE)


class ProfileRecording:
    """One profile: it begins when so many requests were answered."""

    def __init__(self, profiling: Profiling, num_before: int) -> None:
        self._of = profiling
        self._num_before = num_before
        self._is_time = asyncio.Event()
        self._epoch_ns = 0
        self._has_recorded = False
        self.note_answered(0)
        self._task = asyncio.create_task(self._record())

    def note_answered(self, num: int) -> None:
        """So many of the level's requests were answered."""
        if num >= self._num_before:
            self._is_time.set()

    async def _record(self) -> StoppedProfile:
        await self._is_time.wait()
        self._epoch_ns = time.time_ns()
        try:
            await self._of.admin.start(PREFIX)
            await asyncio.sleep(self._of.seconds)
            self._has_recorded = True
        except BaseException as error:
            is_busy = isinstance(error, Refused) and error.status == BUSY
            if not is_busy:  # else it is somebody else's that runs
                await self._of.stop_if_any()
            raise
        return await self._of.admin.stop()

    async def finish(self) -> Profile:
        """Once the level is over: read what was recorded, and write it into one trace.

        Raises ServerError with why there is no profile.
        """
        ended_early = not self._has_recorded
        stopped = await self._task
        try:
            _check(stopped)
            return await asyncio.to_thread(
                merged,
                stopped.traces,
                self._of.file,
                self._epoch_ns,
                unprofiled=stopped.unprofiled,
                ended_early=ended_early,
            )
        except TraceError as error:
            traces = ", ".join(str(file) for files in stopped.traces.values() for file in files)
            own = f"The stages' own traces: {traces or 'none'}"
            raise ServerError(f"--profile: {error}. {own}") from None
        except OSError as error:
            raise ServerError(f"--profile {self._of.file}: {error.strerror or error}") from None


def merged(
    traces: Mapping[str, Sequence[Path]],
    file: Path,
    epoch_ns: int,
    *,
    unprofiled: tuple[str, ...] = (),
    ended_early: bool = False,
) -> Profile:
    """The figures of stages' traces, which are written into one file; TraceError, OSError.

    Each trace is read, written and forgotten before the next.
    """
    recorded: list[Recorded] = []
    with MergedTrace(file, epoch_ns) as target:
        for stage, paths in traces.items():
            own = Recorded(stage)
            for number, path in enumerate(paths):
                trace = read_trace(path, epoch_ns, TRACE_PATIENCE_S)
                name = stage if len(paths) == 1 else f"{stage} rank {number}"
                own.read(target.passed(name, trace))
                own.num_skipped += trace.num_skipped
            recorded.append(own)
    return profile_of(recorded, str(file), unprofiled=unprofiled, ended_early=ended_early)


def _check(stopped: StoppedProfile) -> None:
    """Raise TraceError if a stage has named no trace, or one that cannot be read here."""
    if not stopped.traces:
        raise TraceError(f"no stage of this server takes a profile; {SERVE_WITH}")
    for stage, files in stopped.traces.items():
        if not files:
            raise TraceError(f"stage {stage} has written no trace; the server's log says why")
        for file in files:
            if not file.is_file():
                raise TraceError(
                    f"stage {stage} has written {file}, which is not on this machine; "
                    "run the bench where the server's stages run, or give them a folder of both"
                )
