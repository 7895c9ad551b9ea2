"""The weights that a folder has, by the headers of its safetensors files; no weight is read."""

import json
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from omnistage.stage_configs.json_types import Json

# Tensors of these types take the dtype of the model that is loaded; all others stay as they are.
CAST = ("F64", "F32", "F16", "BF16")
SINGLE_FILE = "model.safetensors"
INDEX_SUFFIX = ".safetensors.index.json"

Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by their names


class StoredTensor(NamedTuple):
    """One tensor of a file."""

    name: str
    kind: str  # as safetensors calls its dtype
    num_elements: int
    num_stored_bytes: int

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Returns what it takes once loaded into a model of this dtype."""
        if self.kind in CAST:
            return self.num_elements * dtype.itemsize
        return self.num_stored_bytes


def stored_tensors(folder: Path) -> Iterator[StoredTensor]:
    """Every tensor of a folder's weights, each once."""
    for path in stored_files(folder):
        for name, entry in _header(path).items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                yield StoredTensor(name, entry["dtype"], prod(entry["shape"]), end - start)


def stored_shapes(folder: Path) -> Shapes:
    """The shape of every tensor of a folder's weights."""
    return {
        name: shape for path in stored_files(folder) for name, shape in file_shapes(path).items()
    }


def file_shapes(path: Path) -> Shapes:
    """The shape of every tensor of a file; ValueError or OSError if it is no safetensors file."""
    try:
        header = _header(path)
        return {n: tuple(one["shape"]) for n, one in header.items() if n != "__metadata__"}
    except (struct.error, KeyError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError("it is no safetensors file") from error


def stored_files(folder: Path) -> list[Path]:
    """Returns the files of an index, or the single file, or all; without variants
    (model.fp16.safetensors).
    """
    indexes = [path for path in folder.glob(f"*{INDEX_SUFFIX}") if not _is_variant(path)]
    if indexes:
        names = {name for path in indexes for name in _index(path)}
        return sorted(path for path in map(folder.joinpath, names) if path.is_file())
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    return sorted(path for path in folder.glob("*.safetensors") if not _is_variant(path))


def _is_variant(path: Path) -> bool:
    return "." in path.name.partition(".safetensors")[0]


def _index(path: Path) -> set[str]:
    return set(json.loads(path.read_text())["weight_map"].values())


def _header(path: Path) -> Json:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: Json = json.loads(file.read(length))
    return header
