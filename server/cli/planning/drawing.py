"""A graph as a drawing in Mermaid's language, which GitHub and the site of docs/ can show."""

from collections.abc import Iterator

from omnistage.server.cli.planning.stage_texts import replica_count
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.rules.edge_payloads import named


def mermaid(graph: StageGraph) -> str:
    """Clients, the gateway, the stages, and what flows between them."""
    return "\n".join(["flowchart LR", *(f"    {line}" for line in _lines(graph))])


def _lines(graph: StageGraph) -> Iterator[str]:
    yield "clients([clients]) <-- HTTP --> gateway"
    for name in graph.entries(graph.outputs):
        yield f"gateway -- requests --> {_node(name)}"
    for name in graph.order:
        yield f'{_node(name)}["{_label(graph.stages[name])}"]'
    for edge in graph.edges:
        yield f"{_node(edge.source)} -- {named(graph.carried(edge))} --> {_node(edge.target)}"
    for output, maker in graph.outputs.items():
        yield f"{_node(maker)} -- {output} --> gateway"


def _node(stage: str) -> str:
    """A stage's name in the drawing: some words, such as `end`, mean something in Mermaid."""
    return f"stage_{stage}"


def _label(stage: StageSpec) -> str:
    lists = dict.fromkeys(replica.gpus for replica in stage.all_replicas)
    gpus = " | ".join(", ".join(f"GPU {gpu}" for gpu in one) for one in lists)
    if stage.num_gpus:
        gpus = f"{stage.num_gpus:g} GPU of a node"
    said = f"<b>{stage.name}</b>", stage.kind, replica_count(stage), gpus
    return "<br>".join(filter(None, said))
