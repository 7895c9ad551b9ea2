"""Rules for a graph as a whole: its parts agree with each other."""

from omnistage.stage_configs.declared.edge import ConnectorSpec, Edge
from omnistage.stage_configs.declared.graph import DeclaredGraph
from omnistage.stage_configs.declared.placement import (
    stage_problem,
)
from omnistage.stage_configs.declared.problems import nearest, problem
from omnistage.stage_configs.declared.stage import MEMORY_SHARE
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.kinds import Payload, Payloads
from omnistage.stage_configs.rules.determinism import determinism_problem
from omnistage.stage_configs.rules.edge_payloads import NoPayload, named
from omnistage.stage_configs.rules.engine_arguments import engine_arguments, value_problem
from omnistage.stage_configs.rules.own_arguments import BRIDGE, MODEL, own_problem
from omnistage.stage_configs.rules.parallel import Problem, parallel_problem
from omnistage.stage_configs.rules.speculation import speculation_problem

# What leaves from a stage's process, not from its engine.
OF_PROCESSES = frozenset({Payload.TEXT, Payload.TOKENS})

DRAWN = frozenset({"image", "video"})


def check_graph(graph: DeclaredGraph) -> None:
    """Raise what is wrong, at its place in the file."""
    if not graph.outputs:
        raise problem("a graph has at least one output", "outputs")
    _check_placement(graph)
    _check_memory(graph)
    order = graph.order
    if len(order) != len(graph.stages):
        stuck = sorted(set(graph.stages) - set(order))
        raise problem(f"the edges make a cycle through {', '.join(stuck)}", "edges")
    _check_joins(graph)
    for number, edge in enumerate(graph.edges):
        _check_payloads(graph, number, edge)
    _check_hidden_states(graph)
    _check_own_arguments(graph)
    _check_gpus(graph)
    _check_determinism(graph)
    _check_speculation(graph)
    _check_entries(graph)
    idle = sorted(set(graph.stages) - set(graph.path(set(graph.outputs))))
    if idle:
        raise problem(f"no output needs stage {idle[0]!r}", "stages", idle[0])
    _check_names(graph)


def _check_joins(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items():
        incoming = graph.incoming(name)
        if len(incoming) > 1 and not KINDS[stage.kind].joins:
            sources = " and ".join(edge.source for edge in incoming)
            message = (
                f"stage {name!r} has {len(incoming)} edges to it, from {sources}; "
                f"a stage of kind {stage.kind} takes one"
            )
            raise problem(message, "edges", graph.edges.index(incoming[-1]))


def _check_payloads(graph: DeclaredGraph, number: int, edge: Edge) -> None:
    try:
        graph.carried(edge)
    except NoPayload as error:
        place = ("carries",) if edge.carries else ()
        raise problem(str(error), "edges", number, *place) from None


def _check_entries(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items():
        kind = KINDS[stage.kind]
        if not graph.incoming(name) and not kind.is_entry:
            wanted = " or ".join(named(choice) for choice in kind.takes)
            raise problem(f"stage {name!r} needs an edge that brings it {wanted}", "edges")
    for output in graph.outputs:
        _check_writers(graph, output)
        entries = graph.entries({output})
        if len(entries) > 1:
            message = f"an output has one entry; {output} has {', '.join(entries)}"
            raise problem(message, "outputs", output)


def _check_hidden_states(graph: DeclaredGraph) -> None:
    for number, edge in enumerate(graph.edges):
        carried = graph.carried(edge)
        if edge.hidden_states == "all" and Payload.ROWS not in carried:
            message = f"the edge carries {named(carried)}; hidden states are rows"
            raise problem(message, "edges", number, "hidden_states")


def _check_writers(graph: DeclaredGraph, output: str) -> None:
    """Refuses images of words without a chat whose answer has the words."""
    writers = graph.writers(output)
    if output in DRAWN and writers and graph.outputs.get("text") not in writers:
        names = " or ".join(sorted(writers))
        message = f"{output} is drawn of what {names} writes, so `text: {names}` is one too"
        raise problem(message, "outputs", output)
    maker = graph.stages[graph.outputs[output]]
    if output == "audio" and writers and DRAWN & KINDS[maker.kind].outputs:
        message = "a pipeline's audio is made of a request's own words: no edge may bring others"
        raise problem(message, "outputs", output)


def _check_placement(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items():
        found = stage_problem(graph.placement, stage.gpus, stage.num_gpus, stage.resources)
        if found is not None:
            message, key = found
            raise problem(message, "stages", name, key)
    for number, edge in enumerate(graph.edges):
        if graph.placement.is_on_nodes and edge.connector.name != ConnectorSpec().name:
            message = "on Ray's nodes rings are joined by links: only `shm`"
            raise problem(message, "edges", number, "connector")


def _check_memory(graph: DeclaredGraph) -> None:
    if graph.placement.is_on_nodes:
        return  # each stage numbers its GPUs by itself
    shares: dict[int, float] = {}
    for stage in graph.stages.values():
        share = stage.engine.get(MEMORY_SHARE, 0.0)
        for gpu in (gpu for replica in stage.all_replicas for gpu in replica.gpus):
            shares[gpu] = shares.get(gpu, 0.0) + share
            # Shares are written in hundredths: a sum may pass 1 by rounding only.
            if shares[gpu] > 1.001:
                message = f"the stages on GPU {gpu} want {shares[gpu]:.2f} of its memory"
                raise problem(message, "stages", stage.name)


def _check_own_arguments(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items():
        kind = KINDS[stage.kind]
        if not kind.is_parallel:
            continue
        is_fed = kind.engine_takes_feed or kind.feeds_itself
        has_bridge = is_fed or bool(_sent(graph, name) - OF_PROCESSES)
        own = {**MODEL, **(BRIDGE if has_bridge else {}), **kind.sets}
        _refuse(name, own_problem(own, stage.engine))


def _check_names(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items():
        known = engine_arguments(stage.kind)
        for argument in sorted(stage.engine.keys() - known) if known else ():
            message = f"unknown key; {nearest(argument, known)}"
            raise problem(message, "stages", name, "engine", argument)
        if not KINDS[stage.kind].is_parallel:
            continue
        for argument, value in stage.engine.items():
            if wrong := value_problem(argument, value):
                raise problem(wrong, "stages", name, "engine", argument)


def _sent(graph: DeclaredGraph, name: str) -> Payloads:
    """Returns what goes along all edges from a stage."""
    return frozenset[Payload]().union(*map(graph.carried, graph.outgoing(name)))


def _check_gpus(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items():
        # Text is its process's.
        has_edge = bool(graph.incoming(name) or _sent(graph, name) - {Payload.TEXT})
        for replica in stage.all_replicas:
            _refuse(name, parallel_problem(KINDS[stage.kind], has_edge, replica.gpus, stage.engine))


def _check_determinism(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items() if graph.deterministic else ():
        _refuse(name, determinism_problem(KINDS[stage.kind], stage.engine, stage.environment))


def _check_speculation(graph: DeclaredGraph) -> None:
    for name, stage in graph.stages.items():
        _refuse(name, speculation_problem(KINDS[stage.kind], stage.engine))


def _refuse(stage: str, found: Problem | None) -> None:
    """Raise what is wrong with a stage, at its place."""
    if found is not None:
        message, place = found
        raise problem(message, "stages", stage, *place)
