"""The command line: check, serve, tiny, bench."""

import os
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from omnistage.bench.command import serve as bench_serve
from omnistage.bench.images_command import images as bench_images
from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.mps import inherited_share_problem
from omnistage.stage_configs.pick import pick_graph

app = typer.Typer(help="Serve models that are graphs of models.", no_args_is_help=True)
bench = typer.Typer(help="Measure a server, or parts of one.", no_args_is_help=True)
app.add_typer(bench, name="bench")
bench.command("serve")(bench_serve)
bench.command("images")(bench_images)
YAML_ENDINGS = (".yaml", ".yml")
TINY_PIPELINES = ("flux", "qwen-image", "sd3", "wan")
REAL_SIZES = ("qwen3-omni", "qwen-image")
TINY_MODELS = ("qwen3-omni", *TINY_PIPELINES)


class LoadFormat(StrEnum):
    """What every kind of stage knows."""

    AUTO = "auto"
    DUMMY = "dummy"


class Offload(StrEnum):
    """What a diffusion stage does if its modules do not fit on the device together."""

    SEQUENTIAL = "sequential"
    LAYERWISE = "layerwise"


def resolve(target: str, model: str | None) -> StageGraph:
    """The graph of a YAML file, a folder or a Hugging Face name, with its model."""
    if target.endswith(YAML_ENDINGS):
        graph = load_graph(Path(target), model)
    else:
        graph = load_graph(pick_graph(target, len(visible_gpus())), model or target)
    if not graph.model:
        raise GraphError(f"{target}:1: model: the key is missing; give one with --model")
    return graph


def missing_gpus(graph: StageGraph) -> list[str]:
    """One sentence for each stage that wants a GPU which is not there."""
    count = len(visible_gpus())
    return [
        f"stage {stage.name} wants GPU {gpu}; this machine has {count}"
        for stage in graph.stages.values()
        for gpu in stage.gpus
        if gpu >= count
    ]


def fail(message: str) -> typer.Exit:
    """Print an error as one line."""
    Console(stderr=True, soft_wrap=True).print(f"error: {message}", markup=False, highlight=False)
    return typer.Exit(1)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A graph in YAML.")],
) -> None:
    """Validate a graph and print its plan, without loading anything."""
    try:
        graph = load_graph(file)
    except GraphError as error:
        raise fail(str(error)) from None
    console = Console()
    stages = Table("stage", "kind", "process", "GPUs", "outputs", title=graph.model or str(file))
    for name in graph.order:
        stage = graph.stages[name]
        made = [output for output, maker in graph.outputs.items() if maker == name]
        gpus = ", ".join(map(str, stage.gpus)) or "CPU"
        stages.add_row(name, stage.kind, "its own", gpus, ", ".join(made))
    edges = Table("from", "to", "connector", "chunk", title="edges")
    for edge in graph.edges:
        sizes = ", ".join(map(str, edge.chunk_sizes)) or "whole"
        edges.add_row(edge.source, edge.target, edge.connector.name, sizes)
    console.print(stages, edges)
    for sentence in missing_gpus(graph):
        console.print(f"warning: {sentence}", markup=False)


@app.command()
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


@app.command()
def tiny(
    model: Annotated[str, typer.Argument(help=f"One of: {', '.join(TINY_MODELS)}.")],
    folder: Annotated[Path, typer.Argument(help="Where to write it.")],
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    real_size: Annotated[
        bool, typer.Option("--real-size", help="The real sizes, no weights: for dummy ones.")
    ] = False,
) -> None:
    """Write a tiny checkpoint with random weights."""
    if model not in TINY_MODELS:
        raise fail(f"unknown model {model!r}; allowed: {', '.join(TINY_MODELS)}")
    if real_size and model not in REAL_SIZES:
        raise fail(f"{model} has no real size here; {', '.join(REAL_SIZES)} have")
    if real_size and model == "qwen-image":
        from omnistage.stages.diffusion.checkpoint.real_qwen_image import write_real_qwen_image

        write_real_qwen_image(folder)
        return
    if model in TINY_PIPELINES:
        from omnistage.stages.diffusion.checkpoint import write_tiny

        write_tiny(model, folder, seed)
        return
    if real_size:
        from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder

        write_real_size_folder(folder)
        return
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    write_tiny_checkpoint(folder, seed)


@bench.command()
def connectors() -> None:
    """The shm connector against memcpy, and its latency between two processes."""
    from omnistage.connectors.bench import run_bench

    columns = ("tensor", "one way p50 µs", "p99 µs", "GB/s", "of two memcpys")
    table = Table(*columns, title="shm connector")
    for figures in run_bench():
        table.add_row(
            figures.size,
            f"{figures.one_way_p50_us:.0f}",
            f"{figures.one_way_p99_us:.0f}",
            f"{figures.gb_per_s:.2f}",
            f"{figures.memcpy_ratio:.2f}",
        )
    Console().print(table)


@bench.command()
def stages(
    target: Annotated[str, typer.Argument(help="A model folder; its weights are not read.")],
    batch: Annotated[list[int] | None, typer.Option(help="Rows at once; repeatable.")] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="Codec frames a chunk; repeatable.")
    ] = None,
) -> None:
    """The code predictor and code2wav alone, each over the time its bytes take."""
    from omnistage.stages.qwen3_omni.stage_bench import StageBench

    measured = StageBench(target)
    table = Table(
        *("part", "batch", "work", "ms", "floor ms", "of the floor"),
        title=f"floor: weights at {measured.bytes_per_s / 1e12:.2f} TB/s, a large copy",
    )
    batches = batch or [1, 8, 64]
    parts = chain(
        measured.code_predictor(batches), measured.code2wav(batches, length or [1, 2, 8, 25])
    )
    for part in parts:
        times = f"{1e3 * part.time_s:.3f}", f"{1e3 * part.floor_s:.3f}"
        ratio = f"{part.time_s / part.floor_s:.1f}"
        table.add_row(part.name, str(part.batch), part.work, *times, ratio)
    Console().print(table)


@bench.command()
def bridge(
    target: Annotated[str, typer.Argument(help="A model folder or a graph in YAML.")],
    model: Annotated[str | None, typer.Option(help="Model folder for the graph.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Requests at once; repeatable.")] = None,
) -> None:
    """A talker's decode step with our bridge to vLLM, over the same engine without it; on a GPU."""
    try:
        graph = resolve(target, model)
    except GraphError as error:
        raise fail(str(error)) from None
    names = (name for name, stage in graph.stages.items() if stage.kind == "qwen3_omni.talker")
    name = next(names, None)
    if name is None:
        raise fail(f"{target} has no talker")
    talker, (edge, *_) = graph.stages[name], graph.outgoing(name)
    os.environ.update({key: str(value) for key, value in talker.environment.items()})
    from omnistage.stages.qwen3_omni.bridge_bench import measure

    def tell(which: str, size: int, time_s: float) -> None:
        Console().print(f"{which} the bridge, {size} at once: {1e3 * time_s:.3f} ms")

    table = Table("batch", "without, ms", "with, ms", "ratio", title="decode step of the talker")
    sizes = batch or [1, 4]
    steps = measure(graph.model, talker.engine, edge.chunk_sizes, sizes, tell)
    for size, (without, within) in steps.items():
        ratio = within / without
        table.add_row(str(size), f"{1e3 * without:.2f}", f"{1e3 * within:.2f}", f"{ratio:.2f}")
    Console().print(table)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
