"""`omnistage serve`."""

import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from omnistage.server.cli.changes import (
    AnyChanges,
    DefaultChanges,
    Deterministic,
    ModelNames,
    OtherModel,
    StageChanges,
    Target,
    changes_of,
)
from omnistage.server.cli.graphs import fail, missing_gpus, resolve, warn
from omnistage.server.runtime.mps_daemon import Mps, MpsError
from omnistage.server.runtime.process import StageProcess
from omnistage.server.telemetry.logs import LogFormat, LogLevel, log_environment
from omnistage.stage_configs.determinism import cpu_note
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.mps import inherited_share_problem
from omnistage.stage_configs.packages import is_installed, missing_features, missing_packages
from omnistage.stage_configs.profiles import with_profiles
from omnistage.stage_configs.traces import traces_url, with_traces

PATH_STARTS = ("/", "./", "../", "~")  # of what is a folder and no name of the hub's
OTLP_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
PORT_CURE = "end what has the port, or take another with --port (0: any that is free)"
MISSING_OTLP = "it needs OpenTelemetry: pip install 'omnistage[otel]'"


class LoadFormat(StrEnum):
    """What every kind of stage knows."""

    AUTO = "auto"
    DUMMY = "dummy"


class Offload(StrEnum):
    """What a diffusion stage does if its modules do not fit on the device together."""

    SEQUENTIAL = "sequential"
    LAYERWISE = "layerwise"


def serve(
    target: Target,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 means any free port.")] = 8000,
    model: OtherModel = None,
    load_format: Annotated[
        LoadFormat | None,
        typer.Option(help="How weights are loaded: auto, or dummy (random weights, no files)."),
    ] = None,
    offload: Annotated[
        Offload | None,
        typer.Option(
            help="How a diffusion stage shares a device that is too small for all its modules: "
            "sequential (modules take turns) or layerwise (blocks take turns)."
        ),
    ] = None,
    client_buffer_mb: Annotated[
        int,
        typer.Option(
            min=1, help="How many MiB of its answer a client may leave unread before it is cut off."
        ),
    ] = 16,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="OMNISTAGE_API_KEY",
            help="A key with which clients may ask; may be given several times. "
            "Without one, everybody may.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="A file of further API keys: one a line, # begins a comment."),
    ] = None,
    admin_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="OMNISTAGE_ADMIN_KEY",
            help="A key with which clients may use /admin; may be given several times. "
            "Without one, /admin is closed.",
        ),
    ] = None,
    admin_key_file: Annotated[
        Path | None,
        typer.Option(help="A file of further admin keys: one a line, # begins a comment."),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(min=1, help="How many requests may run or wait; more get 503.")
    ] = 1000,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many requests a minute each key (without keys: each address) may send; "
            "more get 429.",
        ),
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(min=0.001, help="How many seconds a request may take before it gets 504."),
    ] = None,
    decode_memory_mb: Annotated[
        int,
        typer.Option(
            min=64,
            help="How many MiB the media of all requests may take while they are decoded; "
            "more wait.",
        ),
    ] = 1024,
    allowed_media_path: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="The folder below which file: URLs are allowed."
        ),
    ] = None,
    allowed_media_domains: Annotated[
        list[str] | None,
        typer.Option(
            help="Fetch media from this host only; may be given several times. "
            ".example.org means every host below example.org."
        ),
    ] = None,
    voices: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            writable=True,
            help="The folder in which voices that clients make from a sound are kept. "
            "Without one they are lost at the end.",
        ),
    ] = None,
    mps: Annotated[
        Mps,
        typer.Option(
            help="NVIDIA's MPS, with which stages on one GPU run at the same time. The server "
            "starts and ends the daemon; auto: if stages share a GPU and no daemon runs."
        ),
    ] = Mps.AUTO,
    log_format: Annotated[
        LogFormat, typer.Option(help="How log lines look: text, or json (an object a line).")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            case_sensitive=False,
            help="What is worth a log line, of the server and of its stages.",
        ),
    ] = LogLevel.INFO,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            "--otlp-traces-endpoint",
            help="The OpenTelemetry collector that gets a trace of each request, by OTLP over "
            "HTTP: http://HOST:4318, or a whole address. Without it, no span is made.",
        ),
    ] = None,
    profile_folder: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            writable=True,
            help="The folder into which stages write traces of what they compute, once "
            "/admin/profile/start or `omnistage bench serve --profile` asks for them.",
        ),
    ] = None,
    stage: StageChanges = None,
    set_any: AnyChanges = None,
    set_default: DefaultChanges = None,
    served_model_name: ModelNames = None,
    deterministic: Deterministic = False,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            help="A site whose pages may ask from a browser (CORS), such as https://example.org; "
            "* means all. May be given several times, or as a list in JSON. Without one, none may."
        ),
    ] = None,
    allowed_methods: Annotated[
        list[str] | None, typer.Option(help="A method that such pages may use. Default: all.")
    ] = None,
    allowed_headers: Annotated[
        list[str] | None, typer.Option(help="A header that such pages may send. Default: all.")
    ] = None,
    allow_credentials: Annotated[
        bool, typer.Option("--allow-credentials", help="Such pages may send cookies.")
    ] = False,
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(help="The certificate with which the server speaks TLS, and its chain."),
    ] = None,
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option(help="The certificate's key, if it is not in the same file."),
    ] = None,
    root_path: Annotated[
        str | None,
        typer.Option(help="The path of a proxy below which clients find the server: /models."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check all that can be checked without loading, print what would be served, end.",
        ),
    ] = False,
) -> None:
    """Serve a graph over OpenAI's API until Ctrl-C."""
    changes = changes_of(
        stage, set_any, set_default, served_model_name, deterministic=deterministic
    )
    try:
        graph = resolve(target, model, changes)
    except GraphError as error:
        raise fail(str(error)) from None
    check_machine(graph)
    if load_format is not None:
        graph = graph.with_engine(load_format=load_format.value)
    if offload is not None:
        try:
            graph = graph.with_engine("diffusers", offload=offload.value)
        except ValueError as error:
            raise fail(f"--offload: {error}") from None
    if voices is not None:
        graph = graph.with_voices(voices.absolute())
    if profile_folder is not None:
        if not graph.placement.is_on_nodes:
            make_profile_folder(profile_folder)
        graph = with_profiles(graph, profile_folder.absolute())
    spans_url = None if otlp_endpoint is None else checked_traces_url(otlp_endpoint)
    if spans_url is not None:
        graph = with_traces(graph, spans_url)
    from omnistage.server.cli.dry_run import rehearse
    from omnistage.server.cli.gateway_options import cors_of, root_path_of, tls_of
    from omnistage.server.http.keys import Keys
    from omnistage.server.options import GatewayOptions
    from omnistage.server.serve import serve as serve_graph

    try:
        keys = Keys.read(api_key or (), api_key_file)
        admin_keys = Keys.read(admin_key or (), admin_key_file)
    except (OSError, ValueError) as error:
        raise fail(f"API keys: {error}") from None
    options = GatewayOptions(
        keys=keys,
        admin_keys=admin_keys,
        max_unsent_bytes=client_buffer_mb << 20,
        max_requests=max_queue,
        requests_per_minute=requests_per_minute,
        timeout_s=request_timeout,
        decode_bytes=decode_memory_mb << 20,
        media_path=allowed_media_path,
        media_domains=tuple(allowed_media_domains or ()),
        voices_path=voices,
        mps=mps,
        log_format=log_format,
        log_level=log_level,
        traces_url=spans_url,
        cors=cors_of(allowed_origins, allowed_methods, allowed_headers, allow_credentials),
        tls=tls_of(ssl_certfile, ssl_keyfile),
        root_path=root_path_of(root_path),
    )
    launch = partial(StageProcess, environment=log_environment(log_level))
    try:
        if dry_run:
            rehearse(graph, host, port, options)
            return
        code = serve_graph(graph, host, port, launch=launch, options=options)
    except MpsError as error:
        raise fail(f"--mps {mps}: {error}") from None
    except OSError as error:
        raise fail(f"cannot listen on {host}:{port}: {error.strerror}; {PORT_CURE}") from None
    raise typer.Exit(code)


def check_machine(graph: StageGraph) -> None:
    """typer.Exit if a folder, a GPU or a package is not there, or a GPU is shared out by MPS."""
    if graph.model.startswith(PATH_STARTS) and not Path(graph.model).is_dir():
        raise fail(f"{graph.model}: there is no such folder")
    for sentence in (*missing_gpus(graph), *missing_packages(graph)):
        raise fail(sentence)
    for sentence in (*missing_features(graph), *map(cpu_note, graph.undetermined)):
        warn(sentence)
    is_here = not graph.placement.is_on_nodes
    uses_gpus = is_here and any(map(graph.has_gpu, graph.stages))
    if uses_gpus and (sentence := inherited_share_problem()):
        raise fail(sentence)


def make_profile_folder(folder: Path) -> None:
    """Make it if it is not there; typer.Exit if stages could not write into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"--profile-folder {folder}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise fail(f"--profile-folder {folder}: nothing can be written there")


def checked_traces_url(endpoint: str) -> str:
    """Where spans are posted; typer.Exit if that is no address, or nothing here can post them."""
    if not is_installed(OTLP_EXPORTER):
        raise fail(f"--otlp-endpoint: {MISSING_OTLP}")
    try:
        return traces_url(endpoint)
    except ValueError as error:
        raise fail(f"--otlp-endpoint: {error}") from None
