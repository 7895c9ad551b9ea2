"""Weights of this process as a checkpoint's folder in shared memory, for stages to load."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from omnistage.stage_configs.checkpoint import PIPELINE

SHARED_MEMORY = "/dev/shm"
FILE_BYTES = 1 << 30  # a file is written once so much has come

Weights = Iterable[tuple[str, torch.Tensor]]


@contextmanager
def shared_weights(
    weights: Weights, model: Path | None, folder: str = SHARED_MEMORY
) -> Iterator[Path]:
    """A folder for `load_weights`, until the context ends.

    `weights` are all of a checkpoint, by its own names, on any device; of a pipeline all of some of
    its parts. `model` is the folder of which the rest comes, such as `config.json`.
    """
    with TemporaryDirectory(prefix="omnistage-weights-", dir=folder) as name:
        path = Path(name)
        for file in model.glob("*.json") if model is not None else ():
            if not file.name.endswith((".index.json", PIPELINE)):
                shutil.copy(file, path)
        index = {}
        for number, part in enumerate(_parts(weights)):
            save_file(part, path / f"model-{number:05d}.safetensors", {"format": "pt"})
            index.update(dict.fromkeys(part, f"model-{number:05d}.safetensors"))
        _write_index(path, index)
        yield path


def _parts(weights: Weights) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        part[name] = tensor.detach().cpu().contiguous().clone()  # no two may share memory
        if sum(one.nbytes for one in part.values()) >= FILE_BYTES:
            yield part
            part = {}
    if part:
        yield part


def _write_index(path: Path, index: dict[str, str]) -> None:
    file = path / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {}, "weight_map": index}))
