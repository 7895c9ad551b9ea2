"""`omnistage serve`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from omnistage.server.cli.graphs import fail, missing_gpus, resolve
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.mps import inherited_share_problem


class LoadFormat(StrEnum):
    """What every kind of stage knows."""

    AUTO = "auto"
    DUMMY = "dummy"


class Offload(StrEnum):
    """What a diffusion stage does if its modules do not fit on the device together."""

    SEQUENTIAL = "sequential"
    LAYERWISE = "layerwise"


def serve(
    target: Annotated[str, typer.Argument(help="A graph in YAML, a model folder or a hub name.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    model: Annotated[str | None, typer.Option(help="Model folder for the graph.")] = None,
    load_format: Annotated[
        LoadFormat | None, typer.Option(help="Of every stage's weights; dummy: random, no file.")
    ] = None,
    offload: Annotated[
        Offload | None, typer.Option(help="Of a diffusion stage's modules, one after the other.")
    ] = None,
    client_buffer_mb: Annotated[
        int, typer.Option(min=1, help="MiB a client may leave unread before it is cut off.")
    ] = 16,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="OMNISTAGE_API_KEY", help="Only who has it may ask; repeatable."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="The same, one key a line; # begins a comment.")
    ] = None,
    admin_key: Annotated[
        list[str] | None,
        typer.Option(envvar="OMNISTAGE_ADMIN_KEY", help="For /admin, closed without; repeatable."),
    ] = None,
    admin_key_file: Annotated[
        Path | None, typer.Option(help="The same, one key a line; # begins a comment.")
    ] = None,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Requests that run or wait; more are a 503.")
    ] = 1000,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Of each key, or address; more are a 429.")
    ] = None,
    request_timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds a request may take; then it is a 504.")
    ] = None,
    decode_memory_mb: Annotated[
        int, typer.Option(min=64, help="MiB for decoding all requests' media; others wait.")
    ] = 1024,
    allowed_media_path: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder that file URLs may name."),
    ] = None,
    allowed_media_domains: Annotated[
        list[str] | None,
        typer.Option(help="Only these hosts' media are fetched; .example.org: all below it."),
    ] = None,
) -> None:
    """Serve a graph over OpenAI's API until Ctrl-C."""
    try:
        graph = resolve(target, model)
    except GraphError as error:
        raise fail(str(error)) from None
    for sentence in missing_gpus(graph):
        raise fail(sentence)
    if any(stage.gpus for stage in graph.stages.values()) and (
        sentence := inherited_share_problem()
    ):
        raise fail(sentence)
    if load_format is not None:
        graph = graph.with_engine(load_format=load_format.value)
    if offload is not None:
        try:
            graph = graph.with_engine("diffusers", offload=offload.value)
        except ValueError as error:
            raise fail(f"--offload: {error}") from None
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
    )
    try:
        code = serve_graph(graph, host, port, options=options)
    except OSError as error:
        raise fail(f"cannot listen on {host}:{port}: {error.strerror}") from None
    raise typer.Exit(code)
