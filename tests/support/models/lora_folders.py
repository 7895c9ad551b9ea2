"""A folder as peft writes it, of an adapter that changes nothing."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LAYER = "model.layers.0.self_attn.q_proj"


def write_lora_folder(
    folder: Path, module: str = LAYER, sizes: tuple[int, int] = (16, 8), **config: Any
) -> str:
    """One of rank 2 for a module that takes and gives so many values; its path."""
    tensors = {
        f"base_model.model.{module}.lora_A.weight": torch.zeros(2, sizes[0]),
        f"base_model.model.{module}.lora_B.weight": torch.zeros(sizes[1], 2),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    whole = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    return str(folder)
