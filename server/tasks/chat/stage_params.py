"""The sampling of stages: what a request says of each, over what its graph says."""

from collections.abc import Collection, Mapping

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.stage_configs.declared.sampling import StageParameters, with_defaults
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_stage import Parameter


def entry_defaults(graph: StageGraph) -> dict[str, Parameter]:
    """Returns what a graph's entry stage samples with where a request does not say it."""
    return graph.stages[graph.entry_of("text")].default_sampling_params.given


def stage_params_of(
    graph: StageGraph, path: Collection[str], given: Mapping[str, Mapping[str, Parameter]]
) -> dict[str, dict[str, Parameter]]:
    """The sampling of the stages of a request's path: what it says, and a stage's defaults."""
    merged = {
        name: with_defaults(graph.stages[name].default_sampling_params.given, given.get(name, {}))
        for name in path
    }
    return {name: parameters for name, parameters in merged.items() if parameters}


def checked_stage_params(
    given: Mapping[str, Mapping[str, object]], graph: StageGraph, path_of_request: Collection[str]
) -> dict[str, dict[str, Parameter]]:
    """The sampling of each stage that has any and that the request goes through; or ApiError."""
    checked = {}
    for stage, parameters in given.items():
        path = f"stage_params.{stage}"
        _check_known(path, stage, graph.stages)
        if not KINDS[graph.stages[stage].kind].samples:
            raise invalid(path, "is refused: this stage samples nothing")
        if stage not in path_of_request:
            raise invalid(path, "has no effect: the answer does not need this stage")
        for key in parameters:
            _check_known(f"{path}.{key}", key, StageParameters.model_fields)
        sampling = parse(StageParameters, parameters, path, "{} is refused: {}.")
        checked[stage] = sampling.model_dump(exclude_none=True)
    return checked


def _check_known(path: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise invalid(path, f"is unknown; allowed: {', '.join(sorted(known))}")
