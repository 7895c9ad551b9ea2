"""Compares the modules of a LoRA adapter with those that vLLM adapts in its loaded model."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.lora.utils import parse_fine_tuned_lora_name

from omnistage.stages.device.stored_weights import file_shapes
from omnistage.stages.vllm.adapters.adapter_folder import HALVES, WEIGHTS

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer


def refuse_ignored(model: Any, folder: str) -> None:
    """Raise ValueError if the adapter in a folder has weights that vLLM ignores in this model.

    vLLM compares the last parts of modules' names only. It then ignores, without a word, what no
    layer of the model takes: modules of an encoder, names of another class, modules that
    `lora_target_modules` leaves out. A rank of a pipeline has some of the layers, so their numbers
    are not compared.
    """
    manager = model.lora_manager  # vLLM's
    taken = {_kind(name) for name in manager.modules}
    for parts in manager.packed_modules.values():
        taken |= {_kind(part) for part in parts}
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is not None:  # older versions have no renames apart
        mapper = getattr(mapper, "get_rename_mapper", lambda: mapper)()
    for weight in file_shapes(Path(folder) / WEIGHTS):
        if not any(half in weight for half in HALVES):
            continue
        module, _ = parse_fine_tuned_lora_name(weight, mapper)
        if taken.isdisjoint(_kind(name) for name in _above(module)):
            raise ValueError(f"vLLM does not adapt {module} in this model")


def _kind(name: str) -> str:
    return NUMBER.sub("#", name)


def _above(name: str) -> Iterator[str]:
    """A module and those that it is in: a layer of experts takes the weights of each expert."""
    while name:
        yield name
        name = name.rpartition(".")[0]
