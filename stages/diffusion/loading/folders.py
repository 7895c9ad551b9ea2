"""Reads a pipeline's folder: its classes, and the bytes of its parts."""

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import DiffusionPipeline

from omnistage.stage_configs.checkpoint import PIPELINE, Checkpoint
from omnistage.stages.device.stored_weights import stored_tensors
from omnistage.stages.diffusion.loading.dummy_components import (
    index_of,
)

T = TypeVar("T")
WITHOUT_WEIGHTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")


def declared_classes(made: type) -> Mapping[str, type]:
    """Return the classes of components, by name, that a pipeline's class declares; {} for none."""
    declared: Mapping[str, type] = getattr(made, "component_classes", {})
    return declared


def class_of(path: str | None) -> Any:
    """The pipeline class of a dotted path; without one Diffusers chooses. Raises ValueError."""
    if path is None:
        return DiffusionPipeline
    module, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if not module:
        raise ValueError(f"pipeline_class: must be like my.module.Class, not {path!r}")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"pipeline_class: {error}") from error
    if not callable(getattr(found, "from_pretrained", None)):
        raise ValueError(f"pipeline_class: {path} has no from_pretrained")
    return found


def folder_of(model: str, has_weights: bool) -> Path:
    """The folder of a pipeline, fetched from the hub if it is none."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    if has_weights:
        if Checkpoint(model).has(PIPELINE):
            return Path(DiffusionPipeline.download(model))
        return Path(snapshot_download(model))
    return Path(snapshot_download(model, allow_patterns=list(WITHOUT_WEIGHTS)))


def others(names: Collection[str], parts: Mapping[str, T]) -> dict[str, T]:
    """All parts but these."""
    return {name: part for name, part in parts.items() if name not in names}


def sizes_of(folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of each component's weights in a dtype, by the headers of its files.

    Of a folder without an index all weights are one component.
    """
    index = index_of(folder)
    if not index:
        return {"weights": sum(tensor.num_bytes(dtype) for tensor in stored_tensors(folder))}
    sizes = {
        name: sum(tensor.num_bytes(dtype) for tensor in stored_tensors(folder / name))
        for name, entry in index.items()
        if isinstance(entry, list) and entry[0] is not None
    }
    return {name: size for name, size in sizes.items() if size}
