"""Embedded models: trained toys that come with the package, and the graphs that serve them."""

from pathlib import Path
from typing import Any

from omnistage.stage_configs.family import GRAPHS

CHECKPOINTS = GRAPHS / "checkpoints"
DEFAULT = "small"  # the model that `omnistage up` serves where none is named
# What may be served by its name alone, and its graph; a folder of that name comes first.
EMBEDDED = {
    "small": "small.yaml",
    "small-image": "small_image.yaml",
    "small-with-image": "small_with_image.yaml",
}


def embedded_graph(target: str) -> Path | None:
    """Returns the graph file of an embedded model; None for any other target."""
    if target not in EMBEDDED or Path(target).is_dir():
        return None
    return GRAPHS / EMBEDDED[target]


def with_folders(document: Any) -> Any:
    """Replaces names of embedded checkpoints in a graph's document by their folders.

    Clients call the model by its name as before, unless the document has another for them.
    """
    if not isinstance(document, dict):
        return document
    found = dict(document)
    if (folder := _folder(found.get("model"))) is not None:
        found["served_model_name"] = found.get("served_model_name") or found["model"]
        found["model"] = folder
    stages = found.get("stages")
    if isinstance(stages, dict):
        found["stages"] = {name: _of_stage(spec) for name, spec in stages.items()}
    return found


def _of_stage(spec: Any) -> Any:
    folder = _folder(spec.get("model")) if isinstance(spec, dict) else None
    return spec if folder is None else {**spec, "model": folder}


def _folder(model: Any) -> str | None:
    if not isinstance(model, str) or model not in EMBEDDED or Path(model).is_dir():
        return None
    folder = CHECKPOINTS / model
    return str(folder) if folder.is_dir() else None
