"""Reading one part of a checkpoint, which is a folder or a hub name: its config and its tensors."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch
from safetensors import safe_open
from transformers.utils.hub import cached_file

from omnistage.stage_configs.json_types import Json
from omnistage.stages.device.stored_weights import stored_tensors
from omnistage.stages.messages.loading import BytesRead

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def read_config(model: str, folder: str = "") -> Json:
    """The config.json of a checkpoint, or of a folder in it; raises FileNotFoundError."""
    file = find(model, CONFIG_FILE, folder)
    if file is None:
        raise FileNotFoundError(f"{model} has no {_name(CONFIG_FILE, folder)}")
    settings: Json = json.loads(file.read_text())
    return settings


def read_part(
    model: str, prefix: str, device: torch.device, folder: str = ""
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors whose names begin so, as they are stored; their names without the prefix.

    `folder`: the one in the checkpoint that has them. Only files that hold such tensors are read.
    """

    def is_of_the_part(name: str) -> bool:
        return name.startswith(prefix)

    files = _files_with(model, prefix, folder)
    read = BytesRead(_stored_bytes(next(iter(files)).parent, prefix) if files else 0)
    for file, names in files.items():
        with safe_open(file, framework="pt", device=str(device)) as opened:
            for name in names or filter(is_of_the_part, opened.keys()):
                stored = opened.get_tensor(name)
                read.add(stored.nbytes)
                yield name.removeprefix(prefix), stored
    read.tell()


def find(model: str, name: str, folder: str = "") -> Path | None:
    """Where a file of a checkpoint is on this machine, once it is there."""
    path = cached_file(
        model,
        _name(name, folder),
        _raise_exceptions_for_missing_entries=False,
    )
    return None if path is None else Path(path)


def _name(name: str, folder: str) -> str:
    return str(PurePosixPath(folder, name))


def _stored_bytes(folder: Path, prefix: str) -> int:
    stored = (one for one in stored_tensors(folder) if one.name.startswith(prefix))
    return sum(one.num_stored_bytes for one in stored)


def _files_with(model: str, prefix: str, folder: str) -> dict[Path, list[str]]:
    """Files that hold tensors of the part, and their names (none: look into the file)."""
    index_file = find(model, INDEX_FILE, folder)
    if index_file is None:
        single_file = find(model, SINGLE_FILE, folder)
        if single_file is None:
            raise FileNotFoundError(f"{model} has neither {SINGLE_FILE} nor {INDEX_FILE}")
        return {single_file: []}
    names_by_shard = defaultdict(list)
    for name, shard in json.loads(index_file.read_text())["weight_map"].items():
        if name.startswith(prefix):
            names_by_shard[shard].append(name)
    files = {}
    for shard, names in names_by_shard.items():
        file = find(model, shard, folder)
        if file is None:
            raise FileNotFoundError(f"{model} lacks {shard}, which its index names")
        files[file] = names
    return files
