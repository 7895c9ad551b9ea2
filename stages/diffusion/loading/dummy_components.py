"""A pipeline's modules of their real sizes with random weights, from their configurations alone."""

import json
from collections.abc import Mapping
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import pipelines
from torch.nn import Module, Parameter
from transformers import PreTrainedModel

from omnistage.stage_configs.json_types import Json
from omnistage.stages.device.dtypes import default_dtype
from omnistage.stages.diffusion.loading.modular import index_of_modular, is_modular
from omnistage.stages.diffusion.loading.page_locked import page_locked
from omnistage.stages.dummy_weights import fill_with_dummy_weights

INDEX = "model_index.json"


def empty_components(
    folder: Path, dtype: torch.dtype, declared: Mapping[str, type] | None = None
) -> dict[str, Module]:
    """The modules that a pipeline's folder names. Weights are on the meta device, buffers real."""
    return {
        name: empty_module(made, folder / name, dtype)
        for name, made in classes_in(folder, declared).items()
        if issubclass(made, Module)
    }


def index_of(folder: Path) -> Json:
    """Return the index of a pipeline's folder: components with their libraries and classes.

    It is empty for a folder without one, which a class of its own reads.
    """
    if is_modular(folder):
        return index_of_modular(folder)
    if not (folder / INDEX).is_file():
        return {}
    index: Json = json.loads((folder / INDEX).read_text())
    return index


def classes_in(folder: Path, declared: Mapping[str, type] | None = None) -> dict[str, type]:
    """The classes of the components of a pipeline's folder: those `declared`, or those it names."""
    index, known = index_of(folder), declared or {}
    return {
        name: known[name] if name in known else _class_of(*entry)
        for name, entry in index.items()
        if not name.startswith("_") and isinstance(entry, list) and entry[0] is not None
    }


def fill(module: Module, device: torch.device, home: torch.device) -> None:
    """Random weights instead of the empty ones, made on the device, and all that it has at home.

    Where that is elsewhere, one weight at a time is on the device.
    """
    empty = dict(module.named_parameters())
    made: dict[torch.Tensor, Parameter] = {}  # a weight may be in several places
    places = page_locked(list(empty.values())) if home != device else repeat(None)
    for (name, weight), place in zip(empty.items(), places, strict=False):
        values = torch.empty_like(weight, device=device)
        fill_with_dummy_weights([(name, values)])
        kept = values if place is None else place.copy_(values)
        made[weight] = Parameter(kept, requires_grad=False)
    for part in module.modules():
        for name, held in part._parameters.items():
            if held is not None:
                part._parameters[name] = made[held]
    module.to(home)


def num_bytes(module: Module) -> int:
    """Returns the bytes that a file of it has: parameters and saved buffers, each once."""
    saved = {id(one): one for one in module.state_dict(keep_vars=True).values()}
    return sum(one.numel() * one.itemsize for one in saved.values())


def _class_of(library: str, name: str) -> type:
    """Returns the class that Diffusers finds: in one of its pipelines, else in a library."""
    module = getattr(pipelines, library, None) or import_module(library)
    found: type = getattr(module, name)
    return found


def empty_module(made: Any, folder: Path, dtype: torch.dtype) -> Module:
    """Return a module of a class by its configuration, weights on the meta device, buffers real."""
    with init_empty_weights(include_buffers=False), default_dtype(dtype):
        if issubclass(made, PreTrainedModel):
            config = made.config_class.from_pretrained(folder)
            module: Module = made._from_config(config, dtype=dtype)
        else:
            module = made.from_config(made.load_config(folder))
    kept = set(getattr(made, "_keep_in_fp32_modules", None) or ())
    if issubclass(made, PreTrainedModel):
        made.tie_weights(module)
        kept = kept if dtype is torch.float16 else set()
        kept |= set(getattr(made, "_keep_in_fp32_modules_strict", None) or ())
    saved = module.state_dict(keep_vars=True)  # computed buffers that no file has stay as they are
    for name, weight in saved.items():
        if weight.is_floating_point():
            weight.data = weight.data.to(torch.float32 if kept & set(name.split(".")) else dtype)
    return module.eval()
