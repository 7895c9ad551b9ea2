"""Serves one graph until told to stop: run directory, runtime, HTTP, and back in order."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import uvicorn
from rich.console import Console

from omnistage.connectors.large_blocks import set_large_blocks_apart
from omnistage.connectors.sweep import make_run_directory, sweep
from omnistage.server.app import DEFAULTS, build_app
from omnistage.server.http.listening import url_of
from omnistage.server.http.protocol.head_limit import MAX_HEAD_BYTES
from omnistage.server.http.protocol.http_protocol import GATEWAY_PROTOCOL
from omnistage.server.http.protocol.open_files import AcceptFailures, allow_open_files
from omnistage.server.http.protocol.socket_protocol import SOCKETS, GatewaySocket
from omnistage.server.options.gateway import GatewayOptions, Tls
from omnistage.server.placement.placing import PlacementError, Placing, placing_of
from omnistage.server.runtime.fleet import StageDied
from omnistage.server.runtime.processes.loading import show_loading
from omnistage.server.runtime.processes.mps_daemon import end_daemon, mps_daemon
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.stage_link import StageLauncher
from omnistage.server.telemetry.logs import LogFormat, configure_logging, log_environment
from omnistage.server.telemetry.quiet import is_quiet, quieten
from omnistage.server.telemetry.start_report import StartReport
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.models.cache_folder import logs_folder

logger = logging.getLogger(__name__)

CLIENT_STALL_S = 60
HANG_UP_S = 5  # for clients that do not even take the error that follows
DRAIN_POLL_S = 0.05

PageAt = Callable[[str], AbstractContextManager[object]]


class CannotListen(OSError):
    """The system's refusal of the address to listen on."""


def serve(
    graph: StageGraph,
    host: str,
    port: int,
    launch: StageLauncher | None = None,
    options: GatewayOptions = DEFAULTS,
    *,
    page_at: PageAt | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; the exit code.

    `launch`: starts stages in place of processes. `page_at`: makes what runs beside the server, a
    page for it, from the server's URL.

    Raises CannotListen if the address cannot be had, and MpsError if MPS cannot.
    """
    is_json = options.log_format is LogFormat.JSON
    console = Console(stderr=True, force_terminal=False if is_json else None)
    configure_logging(console, options.log_format, options.log_level)
    quiet = None
    if is_quiet(console, options.log_format, options.log_level):
        quiet = quieten(logs_folder())
    report = StartReport(
        graph, console, quiet, needs_key=bool(options.keys), has_page=page_at is not None
    )
    report.begin()
    set_large_blocks_apart()
    allow_open_files()
    scheme = "http" if options.tls is None else "https"
    listening = listen(host, port, scheme)
    try:
        for abandoned in sweep(before=end_daemon):
            logger.info("removed %s: its server is gone", abandoned)
        run = make_run_directory()
        if options.videos.folder is None:
            videos = replace(options.videos, folder=run.scratch / "videos")
            options = replace(options, videos=videos)
        try:
            environment = log_environment(options.log_level)
            placing = placing_of(graph, run.path, environment, launch)
            runtime = Runtime(
                graph,
                run.path,
                placing.launch,
                max_requests=options.max_requests,
                release=placing.release,
                first_sound_s=options.first_sound_s,
            )
            placing.listen(runtime.fleet.lose, runtime.fleet.is_ready)
            url = url_of(listening, scheme)
            beside = nullcontext() if page_at is None else page_at(url)
            with beside, mps_daemon(options.mps, graph, run.path):
                announce = partial(report.ready, url)
                asyncio.run(_serve(placing, runtime, listening, console, options, announce))
        finally:
            run.remove()
    except (StageDied, PlacementError) as error:
        if isinstance(error, StageDied):
            report.failed(error.stage)
        logger.error("%s", error)
        return 1
    finally:
        listening.close()
    return 0


def listen(host: str, port: int, scheme: str = "http") -> socket.socket:
    """Take the port before anything loads; CannotListen if it is not to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CannotListen(error.errno, error.strerror) from error
    # What is accepted inherits both. An event that follows another at once must not wait until the
    # client acknowledges the first (up to 40 ms); asyncio does not see to it for a given socket.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A connection whose peer takes nothing for so long is dropped by the kernel.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, CLIENT_STALL_S * 1000)
    place = listening.getsockname()
    address = f"[{place[0]}]" if ":" in host else place[0]
    logger.info("listening on %s://%s:%d", scheme, address, place[1])
    return listening


def check_tls(tls: Tls) -> None:
    """Raise OSError, or ssl.SSLError, which is one, if a server cannot use these files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key, password="")  # so that it does not ask


class GatewayServer(uvicorn.Server):
    """A server whose last requests end with an error instead of a cut connection."""

    def __init__(self, runtime: Runtime, options: GatewayOptions) -> None:
        tls = options.tls
        config = uvicorn.Config(
            build_app(runtime, options),
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
            http=GATEWAY_PROTOCOL,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            **SOCKETS,
            log_config=None,
            access_log=False,  # a line a request is ours
            lifespan="off",
            timeout_graceful_shutdown=HANG_UP_S,
        )
        super().__init__(config)
        self._runtime = runtime

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what comes, let requests finish, end those that do not, then stop listening.

        A balancer sees /ready turn to 503, and may give what is refused to another server.
        """
        logger.info("stopping; a second Ctrl-C ends running answers", extra={"is_shown": True})
        self._runtime.flights.stop_admitting()
        self._tell_sockets()
        await self._drained()
        self._runtime.end_requests()
        await super().shutdown(sockets)

    def _tell_sockets(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, GatewaySocket):
                connection.shutdown()

    async def _drained(self) -> None:
        """Until every answer has ended, but no longer than `drain_s`; a second Ctrl-C ends it."""
        loop, flights = asyncio.get_running_loop(), self._runtime.flights
        until = loop.time() + self._runtime.graph.deadlines.drain_s
        while not (flights.is_empty or self.force_exit or loop.time() > until):  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)


async def _serve(
    placing: Placing,
    runtime: Runtime,
    listening: socket.socket,
    console: Console,
    options: GatewayOptions,
    announce: Callable[[], None],
) -> None:
    asyncio.get_running_loop().set_exception_handler(AcceptFailures())
    server = GatewayServer(runtime, options)
    gc.freeze()  # modules, routes and schemas live until the end: collections need not look at them
    # uvicorn handles signals while it serves and then raises them again for whoever was there
    # before: nothing must happen then but what happens here, in order.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    async with placing, runtime:
        loading = asyncio.create_task(_load(runtime, console, announce))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await asyncio.wait({loading, serving}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and loading.exception() is not None:
                server.should_exit = True
            await serving
            if loading.done():
                loading.result()
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)


async def _load(runtime: Runtime, console: Console, announce: Callable[[], None]) -> None:
    """Shows how stages load until all are ready, then announces it; StageDied if one ended."""
    await show_loading(runtime.fleet, console)
    announce()
