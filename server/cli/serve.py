"""`omnistage serve`."""

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from omnistage.server.cli.changes import changes_of
from omnistage.server.cli.graphs import fail, resolve
from omnistage.server.cli.guard import cannot_listen, refused
from omnistage.server.cli.serving.machine import (
    check_machine,
    checked_traces_url,
    make_profile_folder,
)
from omnistage.server.cli.serving.options import ServeOptions
from omnistage.server.cli.serving.with_options import with_serve_options
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.runtime.processes.mps_daemon import MpsError
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.profiles import with_profiles
from omnistage.stage_configs.traces import with_traces

if TYPE_CHECKING:
    from omnistage.server.serve import PageAt


@with_serve_options
def serve(options: ServeOptions) -> None:
    """Serve a graph over OpenAI's API until Ctrl-C."""
    raise typer.Exit(serve_typed(options))


def serve_typed(options: ServeOptions, page_at: "PageAt | None" = None) -> int:
    """Serves what was typed until SIGINT or SIGTERM, or checks it; returns the exit code.

    `page_at`: as of `serve` in server/serve.py. Raises typer.Exit for what cannot be served.
    """
    from omnistage.server.cli.serving import dry_run
    from omnistage.server.serve import CannotListen
    from omnistage.server.serve import serve as serve_graph

    graph = graph_of(options)
    gateway = gateway_options(options)
    try:
        if options.dry_run:
            dry_run.rehearse(graph, options.host, options.port, gateway)
            return 0
        place = options.host, options.port
        return serve_graph(graph, *place, options=gateway, page_at=page_at)
    except MpsError as error:
        raise fail(f"--mps {gateway.mps}: {error}") from None
    except CannotListen as error:
        raise fail(cannot_listen(f"{options.host}:{options.port}", error)) from None


def graph_of(options: ServeOptions) -> StageGraph:
    """Returns the graph that is served, which this machine can start; typer.Exit otherwise."""
    changes = changes_of(
        options.stage,
        options.set_any,
        options.set_default,
        options.served_model_name,
        options.voice_alias,
        deterministic=options.deterministic,
    )
    try:
        graph = resolve(options.target, options.model, changes)
    except GraphError as error:
        raise fail(str(error)) from None
    check_machine(graph)
    return _with_options(graph, options)


def _with_options(graph: StageGraph, options: ServeOptions) -> StageGraph:
    """Returns the graph with the options that go to its stages."""
    if options.load_format is not None:
        graph = graph.with_engine(load_format=options.load_format.value)
    if options.offload is not None:
        try:
            graph = graph.with_engine("diffusers", offload=options.offload.value)
        except ValueError as error:
            raise fail(f"--offload: {error}") from None
    if (voices := options.plain.voices_path) is not None:
        graph = graph.with_voices(voices.absolute())
    if options.profile_folder is not None:
        if not graph.placement.is_on_nodes:
            make_profile_folder(options.profile_folder)
        graph = with_profiles(graph, options.profile_folder.absolute())
    spans_url = spans_url_of(options)
    return graph if spans_url is None else with_traces(graph, spans_url)


def spans_url_of(options: ServeOptions) -> str | None:
    """Returns where spans are posted; None without a collector, typer.Exit for a wrong one."""
    endpoint = options.otlp_endpoint
    return None if endpoint is None else checked_traces_url(endpoint)


def gateway_options(typed: ServeOptions) -> GatewayOptions:
    """Returns the options of the server; typer.Exit for one that it cannot have."""
    from omnistage.server.cli.serving.gateway_options import (
        call_network_of,
        check_turn_model,
        cors_of,
        root_path_of,
        tls_of,
    )
    from omnistage.server.http.access.keys import Keys

    try:
        keys = Keys.read(typed.api_key or (), typed.api_key_file)
        admin_keys = Keys.read(typed.admin_key or (), typed.admin_key_file)
    except OSError as error:
        raise fail(f"API keys: {refused(error)}") from None
    except ValueError as error:
        raise fail(f"API keys: {error}") from None
    check_turn_model(typed.plain.turn_model)
    cors = cors_of(
        typed.allowed_origins,
        typed.allowed_methods,
        typed.allowed_headers,
        typed.allow_credentials,
    )
    return replace(
        typed.plain,
        keys=keys,
        admin_keys=admin_keys,
        traces_url=spans_url_of(typed),
        cors=cors,
        calls=call_network_of(typed.webrtc_ports, typed.webrtc_address),
        tls=tls_of(typed.ssl_certfile, typed.ssl_keyfile),
        root_path=root_path_of(typed.root_path),
    )
