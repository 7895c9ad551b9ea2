"""Random weights, whose answers are noise: the mark of `omnistage tiny`, and who has them."""

from pathlib import Path

from omnistage.stage_configs.graph import StageGraph

MARK = "RANDOM_WEIGHTS.txt"  # in a model's folder
RANDOM_NOTE = "random weights: answers are noise"
DUMMY = "dummy"


def mark_random(folder: Path, model: str) -> None:
    """Marks a model's folder as written by `omnistage tiny`."""
    text = f"omnistage tiny {model} wrote this folder. It has {RANDOM_NOTE}.\n"
    (folder / MARK).write_text(text, "utf-8")


def has_random_weights(graph: StageGraph) -> bool:
    """Returns whether a stage's weights are random: dummy ones, or those of a marked folder."""
    return any(
        stage.engine.get("load_format") == DUMMY
        or (Path(stage.model or graph.model) / MARK).is_file()
        for stage in graph.stages.values()
    )


def note_of(graph: StageGraph) -> str:
    """Returns what users of a graph's model must know: what is left out, and random weights."""
    random = RANDOM_NOTE if has_random_weights(graph) else ""
    return "; ".join(one for one in (graph.note, random) if one)
