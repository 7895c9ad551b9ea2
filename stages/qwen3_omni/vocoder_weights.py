"""Reading the vocoder, and only the vocoder, from a Qwen3-Omni checkpoint."""

import json
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeRotaryEmbedding,
)
from transformers.utils.hub import cached_file

from omnistage.stages.device.stored_weights import stored_tensors
from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.messages.loading import BytesRead

PREFIX = "code2wav."
DUMMY_BOUND = 0.03  # its sound then varies, and is not clipped
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def load_vocoder(
    model: str, device: torch.device, dtype: torch.dtype, *, has_weights: bool = True
) -> Qwen3OmniMoeCode2Wav:
    """The vocoder of a checkpoint folder or hub name; without weights, one with dummy weights."""
    config = _read_config(model)
    if not has_weights:
        with torch.device(device):
            vocoder = _freeze(Qwen3OmniMoeCode2Wav(config), dtype)
        named: nn.Module = vocoder
        fill_with_dummy_weights(named.named_parameters(), DUMMY_BOUND)
        return vocoder
    with torch.device("meta"):
        vocoder = Qwen3OmniMoeCode2Wav(config)
    vocoder.load_state_dict(_read_tensors(model, device, dtype), assign=True)
    _restore_buffers(vocoder, device)
    return _freeze(vocoder, dtype)


def empty_vocoder(model: str, dtype: torch.dtype) -> Qwen3OmniMoeCode2Wav:
    """The vocoder of a checkpoint folder or hub name as shapes alone: on the meta device."""
    with torch.device("meta"):
        return _freeze(Qwen3OmniMoeCode2Wav(_read_config(model)), dtype)


def _read_config(model: str) -> Qwen3OmniMoeCode2WavConfig:
    config_file = _find(model, "config.json")
    if config_file is None:
        raise FileNotFoundError(f"{model} has no config.json")
    settings = json.loads(config_file.read_text())
    if "code2wav_config" not in settings:
        raise ValueError(f"{config_file} has no code2wav_config: not a Qwen3-Omni checkpoint")
    return Qwen3OmniMoeCode2WavConfig(**settings["code2wav_config"])


def _freeze(vocoder: Qwen3OmniMoeCode2Wav, dtype: torch.dtype) -> Qwen3OmniMoeCode2Wav:
    module: nn.Module = vocoder
    module.to(dtype).train(False).requires_grad_(False)
    return vocoder


def _restore_buffers(vocoder: Qwen3OmniMoeCode2Wav, device: torch.device) -> None:
    """What no checkpoint holds is still on the meta device."""
    config = vocoder.config
    offsets = torch.arange(config.num_quantizers, device=device) * config.codebook_size
    vocoder.code_offset = offsets.view(1, -1, 1)
    vocoder.pre_transformer.rotary_emb = Qwen3OmniMoeRotaryEmbedding(config).to(device)


def _read_tensors(model: str, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {}
    files = _files_with_vocoder(model)
    read = BytesRead(_stored_bytes(next(iter(files)).parent) if files else 0)
    for file, names in files.items():
        with safe_open(file, framework="pt", device=str(device)) as opened:
            for name in names or filter(_is_vocoder, opened.keys()):
                stored = opened.get_tensor(name)
                tensors[name.removeprefix(PREFIX)] = stored.to(dtype)
                read.add(stored.nbytes)
    read.tell()
    return tensors


def _stored_bytes(folder: Path) -> int:
    stored = (one for one in stored_tensors(folder) if _is_vocoder(one.name))
    return sum(one.num_stored_bytes for one in stored)


def _files_with_vocoder(model: str) -> dict[Path, list[str]]:
    """Files that hold vocoder tensors, and their names (none: look into the file)."""
    index_file = _find(model, INDEX_FILE)
    if index_file is None:
        single_file = _find(model, SINGLE_FILE)
        if single_file is None:
            raise FileNotFoundError(f"{model} has neither {SINGLE_FILE} nor {INDEX_FILE}")
        return {single_file: []}
    names_by_shard = defaultdict(list)
    for name, shard in json.loads(index_file.read_text())["weight_map"].items():
        if _is_vocoder(name):
            names_by_shard[shard].append(name)
    files = {}
    for shard, names in names_by_shard.items():
        file = _find(model, shard)
        if file is None:
            raise FileNotFoundError(f"{model} lacks {shard}, which its index names")
        files[file] = names
    return files


def _is_vocoder(name: str) -> bool:
    return name.startswith(PREFIX)


def _find(model: str, name: str) -> Path | None:
    path = cached_file(
        model,
        name,
        _raise_exceptions_for_missing_entries=False,
    )
    return None if path is None else Path(path)
