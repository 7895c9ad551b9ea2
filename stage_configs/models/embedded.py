"""Embedded models: trained toys that come with the package, and the graphs that serve them."""

import logging
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omnistage.stage_configs.family import GRAPHS

logger = logging.getLogger("omnistage.families")

CHECKPOINTS = GRAPHS / "checkpoints"
DEFAULT = "small"  # the model that `omnistage up` serves where none is named
# What may be served by its name alone, and its graph; a folder of that name needs a path: ./small.
EMBEDDED = {"small": "small.yaml", "small-image": "small_image.yaml"}


def embedded_graph(target: str) -> Path | None:
    """Returns the graph file of an embedded model; None for any other target."""
    return GRAPHS / EMBEDDED[target] if target in EMBEDDED else None


def embedded_hint(target: str) -> str:
    """Returns the embedded model whose name is near what was typed, as a question; or nothing."""
    near = get_close_matches(target.lower(), EMBEDDED, n=1)
    is_typo = near and not Path(target).exists()
    return f"; did you mean {near[0]!r}, which comes with omnistage?" if is_typo else ""


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
    if not isinstance(model, str) or model not in EMBEDDED:
        return None
    folder = CHECKPOINTS / model
    if not folder.is_dir():
        return None
    if Path(model).is_dir():
        logger.warning(
            "%s is the model that comes with omnistage, not the folder here: that one is ./%s",
            *(model, model),
        )
    return str(folder)
