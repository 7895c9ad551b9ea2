"""A graph that runs for one event loop: started and ended in order, and its requests one by one."""

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from uuid import uuid4

from rich.console import Console

from omnistage.connectors import make_connector
from omnistage.connectors.sweep import RunDirectory, make_run_directory, sweep
from omnistage.server.common.deadline import due_at, loop_time_in
from omnistage.server.common.memory import GivingBack
from omnistage.server.common.trace import (
    FIRST_AUDIO,
    FIRST_IMAGE,
    FIRST_TEXT,
    GATEWAY,
    RECEIVED,
    Trace,
    current_trace,
    following,
)
from omnistage.server.media.decode_room import DecodeRoom
from omnistage.server.media.fetch import MediaFetcher
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.load import MediaLoader
from omnistage.server.offline.errors import Closed, StartFailed, as_ours
from omnistage.server.offline.options import GraphChoice, OfflineOptions, check_machine
from omnistage.server.placement.placing import PlacementError, placing_of
from omnistage.server.runtime.fleet import StageDied
from omnistage.server.runtime.processes.channels import MakeConnector
from omnistage.server.runtime.processes.loading import show_loading
from omnistage.server.runtime.processes.mps_daemon import MpsError, end_daemon, mps_daemon
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.stage_link import StageLauncher
from omnistage.server.tasks.commands import StageCommands
from omnistage.server.tasks.pieces import Answer, Picture, Piece, Text
from omnistage.server.tasks.recordings import Audio
from omnistage.server.tasks.service import Service
from omnistage.server.tasks.speech.stored_voices import StoredVoices
from omnistage.server.telemetry.logs import LogFormat, configure_logging, log_environment
from omnistage.server.telemetry.quiet import is_quiet, quieten
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.models.cache_folder import logs_folder
from omnistage.stage_configs.models.random_weights import RANDOM_NOTE, has_random_weights

logger = logging.getLogger(__name__)

MAX_UNREAD = 64  # pieces of a stream that nobody has taken yet
FIRSTS: Mapping[type[Piece], str] = {Text: FIRST_TEXT, Audio: FIRST_AUDIO, Picture: FIRST_IMAGE}

Pieces = AsyncGenerator[Piece, None]


class Engine:
    """The stages of a graph, and what requests share."""

    def __init__(
        self,
        choice: GraphChoice | StageGraph,
        options: OfflineOptions,
        launch: StageLauncher | None = None,
        make_connector: MakeConnector = make_connector,
    ) -> None:
        self.graph = choice.resolve() if isinstance(choice, GraphChoice) else choice
        self.options = options
        check_machine(self.graph)
        self._environment = log_environment(options.log_level)
        self._launch = launch
        self._make_connector = make_connector
        self._places = asyncio.Semaphore(options.max_requests)
        self._stack = AsyncExitStack()
        self._closing: asyncio.Task[None] | None = None
        self.is_open = False
        fetcher = MediaFetcher(options.media_domains)
        self._stack.push_async_callback(fetcher.aclose)
        room = DecodeRoom(options.decode_bytes, GivingBack())
        self.media = MediaLoader(fetcher, MediaFolder(options.media_path), room)
        self.voices = StoredVoices()

    # Life

    async def start(self) -> None:
        """Return when every stage is ready; raises StartFailed. An engine starts once."""
        if self.is_open or self._closing is not None:
            raise Closed("It was started before: make another.", code="closed")
        console = Console(stderr=True)
        quiet = None
        if not logging.getLogger().handlers:
            level = self.options.log_level
            configure_logging(console, level=level)
            if is_quiet(console, LogFormat.TEXT, level):
                quiet = quieten(logs_folder())
        if self.graph.note:
            logger.warning("%s is used as %s", self.graph.model, self.graph.note)
        if has_random_weights(self.graph):
            logger.warning("%s has %s", self.graph.model, RANDOM_NOTE)
        try:
            async with self._stack as stack:
                await self._start(stack, console)
                self._stack = stack.pop_all()
        except (StageDied, MpsError, PlacementError) as error:
            raise StartFailed(str(error), code="not_started") from error
        if quiet is not None:
            quiet.has_started = True
        self.is_open = True

    async def _start(self, stack: AsyncExitStack, console: Console) -> None:
        sweep(before=end_daemon)
        run = make_run_directory()
        stack.callback(removal(self, run))
        stack.enter_context(mps_daemon(self.options.mps, self.graph, run.path))
        placing = placing_of(self.graph, run.path, self._environment, self._launch)
        limit = self.options.max_requests
        launch, make, release = placing.launch, self._make_connector, placing.release
        self.runtime = Runtime(self.graph, run.path, launch, make, limit, release)
        placing.listen(self.runtime.fleet.lose, self.runtime.fleet.is_ready)
        self.service = Service(self.runtime, self.media, self.voices)
        self.commands = StageCommands(self.runtime)
        self.directory = run.path
        await stack.enter_async_context(placing)
        await stack.enter_async_context(self.runtime)
        if self.options.progress:
            await show_loading(self.runtime.fleet, console)
        else:
            await self.runtime.fleet.loaded()

    async def close(self) -> None:
        """Fail what still runs, end the stages and remove what they used; may be called twice."""
        self.is_open = False
        if self._closing is None:
            self._closing = asyncio.create_task(self._stack.aclose())
        await asyncio.shield(self._closing)

    def check_open(self) -> None:
        """Raise Closed where no stage can be asked."""
        if not self.is_open:
            raise Closed("It is closed, or was not started.", code="closed")

    # Requests

    @asynccontextmanager
    async def _request(self) -> AsyncGenerator[None, None]:
        """Returns what one request has around it: its place, its trace, its deadline, errors of
        ours.
        """
        trace = Trace(request_id=f"offline-{uuid4().hex}")
        with following(trace), as_ours():
            async with self._places:
                self.check_open()
                trace.timeline.mark(GATEWAY, RECEIVED)
                async with due_at(loop_time_in(self.options.timeout_s)):
                    yield

    async def whole(self, pieces: Pieces) -> Answer:
        """The answer at the end of the pieces; raises OmniError."""
        last: Piece | None = None
        async with self._request(), aclosing(pieces):
            async for piece in pieces:
                last = piece
                mark_first(piece)
        assert isinstance(last, Answer), "every request ends with its answer or raises"
        return last

    async def stream(self, pieces: Pieces) -> Pieces:
        """The pieces as they come, the answer last; closing it early cancels the request."""
        stream = PieceStream(asyncio.Semaphore(MAX_UNREAD))
        pumping = asyncio.create_task(self._pump(pieces, stream))
        try:
            while (piece := await stream.queue.get()) is not None:
                stream.room.release()
                yield piece
            await asyncio.wait({pumping})
            if pumping.cancelled():
                raise Closed("It was closed before the answer was complete.", code="closed")
            pumping.result()
        finally:
            pumping.cancel()
            await asyncio.wait({pumping})

    async def _pump(self, pieces: Pieces, stream: "PieceStream") -> None:
        """Put pieces into a stream: all of a request happens in this one task."""
        try:
            async with self._request(), aclosing(pieces):
                async for piece in pieces:
                    mark_first(piece)
                    await stream.room.acquire()
                    stream.queue.put_nowait(piece)
        finally:
            stream.queue.put_nowait(None)


class PieceStream:
    """Pieces between the task that makes them and who reads them; None is the end."""

    def __init__(self, room: asyncio.Semaphore) -> None:
        self.room = room
        self.queue: asyncio.Queue[Piece | None] = asyncio.Queue()


def mark_first(piece: Piece) -> None:
    """Stamp the first text, sound and picture."""
    event = FIRSTS.get(type(piece))
    if event is not None:
        current_trace().timeline.mark(GATEWAY, event)


def removal(engine: Engine, run: RunDirectory) -> "weakref.finalize[[RunDirectory, int], Engine]":
    """Returns what removes a run's folders: once, at the latest when this process ends."""
    return weakref.finalize(engine, remove_ours, run, os.getpid())


def remove_ours(run: RunDirectory, pid: int) -> None:
    """Remove a run's folders, but not from a process that was forked off."""
    if os.getpid() == pid:
        run.remove()
