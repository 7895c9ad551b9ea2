"""LoRA adapters of text models as peft writes them, with weights large enough to be heard."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

TARGETS = ("q_proj", "v_proj", "down_proj")
SCALE = 0.3


def write_text_lora(
    model: Any, folder: Path, seed: int, rank: int = 4, targets: Sequence[str] | str = TARGETS
) -> Path:
    """Write an adapter for a model like this one, which is left as it was."""
    generator = torch.Generator().manual_seed(seed)
    chosen = targets if isinstance(targets, str) else list(targets)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=chosen)
    adapted: Any = get_peft_model(model, config)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data = SCALE * torch.randn(weight.shape, generator=generator)
    adapted.save_pretrained(folder)
    adapted.unload()
    return folder


def adapted(model: Any, folder: Path) -> Any:
    """The model with an adapter, which `unload` takes off again."""
    return PeftModel.from_pretrained(model, str(folder)).eval()
