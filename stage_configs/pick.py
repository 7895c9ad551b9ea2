"""Picks the graph that serves a model: each family knows its own checkpoints."""

import logging
from collections.abc import Sequence
from pathlib import Path

from omnistage.connectors.registry import Unusable
from omnistage.stage_configs.checkpoint import Checkpoint, UnreadableCheckpoint
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.families import FAMILIES, KINDS
from omnistage.stage_configs.family import GRAPHS as GRAPHS
from omnistage.stage_configs.family import Family, Picked
from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.kinds import Offer
from omnistage.stage_configs.models.embedded import embedded_graph, embedded_hint
from omnistage.stage_configs.overrides import Override

logger = logging.getLogger("omnistage.families")

YAML_ENDINGS = (".yaml", ".yml")


def find_graph(
    target: str, model: str | None = None, changes: Sequence[Override] = ()
) -> StageGraph:
    """The graph of a YAML file, which may name no model, of an embedded model, of a folder or a
    Hugging Face name.
    """
    if (embedded := embedded_graph(target)) is not None:
        return offered(load_graph(embedded, model, changes))
    if target.endswith(YAML_ENDINGS):
        return offered(load_graph(Path(target), model, changes))
    picked = pick_graph(target, len(visible_gpus()))
    graph = load_graph(picked.file, model or target, changes)
    return offered(graph.model_copy(update={"note": graph.note or picked.note}), has_hub=True)


def resolve(target: str, model: str | None, changes: Sequence[Override] = ()) -> StageGraph:
    """The graph of a YAML file, an embedded model, a folder or a hub's name, with its model."""
    graph = find_graph(target, model, changes)
    if not graph.model:
        raise GraphError(f"{target}:1: model: the key is missing; give one with --model")
    return graph


def offered(graph: StageGraph, has_hub: bool = False) -> StageGraph:
    """Return the graph with those of its outputs that its stages make of their models.

    Models that are no folders are looked at if the hub may be asked. Raises GraphError for a model
    that is not served, and for an output that nobody makes.
    """
    outputs, notes = dict(graph.outputs), [graph.note]
    for name, spec in graph.stages.items():
        offer = _offer(spec, spec.model or graph.model, has_hub)
        if offer is None:
            continue
        notes.append(offer.note)
        own = {output for output, maker in outputs.items() if maker == name}
        if own and not own & offer.outputs:
            makes = " and ".join(sorted(offer.outputs))
            raise GraphError(f"outputs.{min(own)}: the model of {name} makes {makes}")
        for output in own - offer.outputs:
            del outputs[output]
    note = " ".join(filter(None, notes))
    return graph.model_copy(update={"outputs": outputs, "note": note})


def _offer(spec: StageSpec, model: str, has_hub: bool) -> Offer | None:
    offer = KINDS[spec.kind].offer
    if offer is None or not (has_hub or Path(model or "-").is_dir()):
        return None
    try:
        return offer(Checkpoint(model), spec.engine)
    except ValueError as error:
        raise GraphError(f"stages.{spec.name}: {model}: {error}") from error


def pick_graph(model: str, num_gpus: int) -> Picked:
    """The graph of a folder or a Hugging Face name; raises GraphError."""
    checkpoint = Checkpoint(model)
    try:
        picks = _picks(checkpoint, num_gpus)
    except Unusable as error:
        raise GraphError(str(error)) from error
    known = {name: one for name, one in picks.items() if not one.is_last_resort}
    if not known:
        for problem in FAMILIES.problems():  # it could be of one of these
            logger.warning("%s", problem)
    chosen = known or picks
    if not chosen:
        raise GraphError(checkpoint.problem + embedded_hint(model))
    if len(chosen) > 1:
        families = " and ".join(FAMILIES.described(name) for name in chosen)
        raise GraphError(f"{model} is a model of {families}: name a graph file in its place")
    return next(iter(chosen.values()))


def _picks(checkpoint: Checkpoint, num_gpus: int) -> dict[str, Picked]:
    """Returns what each family says that knows the model."""
    asked = ((name, _pick(family, checkpoint, num_gpus)) for name, family in FAMILIES.usable())
    return {name: picked for name, picked in asked if picked is not None}


def _pick(family: Family, checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """A family that fails at a model is none for it; the others may be."""
    try:
        return family.pick(checkpoint, num_gpus)
    except UnreadableCheckpoint as error:
        raise GraphError(str(error)) from error
    except Exception:
        logger.exception("%s failed at %s", FAMILIES.described(family.name), checkpoint.model)
        return None
