"""Traces of what stages compute: what engines are told so that they can be asked for them."""

from pathlib import Path

from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.rules.engine_arguments import profiler_fields

PROFILER, FOLDER = "profiler_config", "profile_folder"  # of vLLM's engine, and of others
# Python's stacks would slow every operator down, and tables of kernels take seconds to make.
VLLM: Json = {
    "profiler": "torch",
    "torch_profiler_with_stack": False,
    "torch_profiler_dump_cuda_time_total": False,
    "ignore_frontend": True,
}

# torch would else detach CUPTI from a process after each profile, which has ended processes with
# CUDA graphs, and the next profile would begin seconds later.
KEPT = {"TEARDOWN_CUPTI": "0"}


def with_profiles(graph: StageGraph, folder: Path) -> StageGraph:
    """The graph whose engines can write traces, each stage's in a folder of its own below `folder`.

    What the graph file says of an engine's profiler stays. A stage is silent while it writes its
    trace, so requests wait for it as long as for a command.
    """
    stages = {name: _profiled(stage, folder / name) for name, stage in graph.stages.items()}
    waits = ("first_chunk_s", "next_chunk_s")
    command_s = graph.deadlines.command_s
    longer = {name: max(getattr(graph.deadlines, name), command_s) for name in waits}
    deadlines = graph.deadlines.model_copy(update=longer)
    return graph.model_copy(update={"stages": stages, "deadlines": deadlines})


def _profiled(stage: StageSpec, folder: Path) -> StageSpec:
    kind = KINDS[stage.kind]
    own: dict[str, object] = {}
    if kind.is_parallel:
        known = {name: value for name, value in VLLM.items() if name in profiler_fields()}
        own = {PROFILER: {**known, "torch_profiler_dir": str(folder)}} if known else {}
    elif FOLDER in kind.arguments:
        own = {FOLDER: str(folder)}
    if not own:
        return stage
    environment = {**KEPT, **stage.environment}
    engine = {**own, **stage.engine}
    return stage.model_copy(update={"engine": engine, "environment": environment})
