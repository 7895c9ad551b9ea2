"""LoRA files with weights large enough to be seen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict

TARGETS = ("to_q", "to_v")


def write_lora(
    pipeline: Any,
    folder: Path,
    seed: int,
    part: str = "transformer",
    targets: Sequence[str] = TARGETS,
) -> Path:
    """A file for a pipeline like this one, which is spoilt by it."""
    generator = torch.Generator().manual_seed(seed)
    module = getattr(pipeline, part)
    module.add_adapter(LoraConfig(r=2, lora_alpha=4, target_modules=list(targets)))
    for name, weight in module.named_parameters():
        if "lora_" in name:
            weight.data = torch.randn(weight.shape, generator=generator)
    layers = get_peft_model_state_dict(module)
    type(pipeline).save_lora_weights(folder, **{f"{part}_lora_layers": layers})
    (file,) = folder.glob("*.safetensors")
    return file
