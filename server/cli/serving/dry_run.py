"""`omnistage serve --dry-run`: what would be served, checked as far as nothing must be loaded."""

from rich.console import Console
from rich.table import Table

from omnistage.server.cli.graphs import fail
from omnistage.server.cli.plan import plan_tables
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.runtime.processes.mps_daemon import needs_daemon
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.models.architectures import unknown_architectures


def rehearse(graph: StageGraph, host: str, port: int, options: GatewayOptions) -> None:
    """Prints a server that could start.

    Raises what `serve` would, CannotListen and MpsError, and typer.Exit for a model that vLLM
    does not know.
    """
    from omnistage.server.serve import listen

    for sentence in unknown_architectures(graph):
        raise fail(sentence)
    listen(host, port).close()
    has_mps = needs_daemon(options.mps, graph)
    console = Console()
    console.print(plan_tables(graph, graph.model))
    console.print(_summary(graph, f"{host}:{port}", options, has_mps))


def _summary(graph: StageGraph, address: str, options: GatewayOptions, has_mps: bool) -> Table:
    scheme = "http" if options.tls is None else "https"
    origins = () if options.cors is None else options.cors.origins
    limit_s = options.first_sound_s
    table = Table("option", "value", title="the server")
    for name, value in (
        ("address", f"{scheme}://{address}{options.root_path}"),
        ("model names", ", ".join(graph.served_names)),
        ("outputs", ", ".join(graph.outputs)),
        ("API keys", "needed" if options.keys else "none: everybody may ask"),
        ("/admin", "with its keys" if options.admin_keys else "closed"),
        ("pages of other sites", ", ".join(origins) or "none"),
        ("requests at once", str(options.max_requests)),
        ("first sound within", f"{limit_s:g} s" if limit_s else "no limit"),
        ("MPS", "started" if has_mps else "not started"),
    ):
        table.add_row(name, value)
    return table
