"""Tiny text models with quantized weights, as checkpoints are published, and what they compute.

Written and computed with torch alone, by the formats' descriptions: nothing of vLLM's is used.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Qwen3ForCausalLM

FILE = "model.safetensors"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the eight columns in a word
GROUP = 32  # inputs that have one scale in AWQ
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Quantized:
    """A linear layer's tensors by their names' ends, and its weights [out, in] as they count.

    `inputs`: what inputs of the layer are rounded to, if they are.
    """

    tensors: Tensors
    weight: torch.Tensor
    inputs: Callable[[torch.Tensor], torch.Tensor] | None = None


def awq(weight: torch.Tensor) -> Quantized:
    """Four bits, asymmetric, with a scale for each output and GROUP inputs."""
    num_out, num_in = weight.shape
    groups = weight.T.reshape(num_in // GROUP, GROUP, num_out)  # as it is stored: inputs first
    low = groups.amin(dim=1, keepdim=True).clamp(max=0)
    high = groups.amax(dim=1, keepdim=True).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    values = (groups / scales + zeros).round().clamp(0, 15)
    counted = ((values - zeros) * scales).reshape(num_in, num_out).T
    tensors = {
        "qweight": _packed(values.reshape(num_in, num_out)),
        "qzeros": _packed(zeros[:, 0]),
        "scales": scales[:, 0].half().contiguous(),
    }
    return Quantized(tensors, counted)


def _packed(values: torch.Tensor) -> torch.Tensor:
    """Rows of four-bit numbers as words of eight."""
    words = values.to(torch.int64).unflatten(1, (-1, 8))
    packed = sum(words[..., column] << (4 * place) for place, column in enumerate(AWQ_ORDER))
    assert isinstance(packed, torch.Tensor)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def fp8(weight: torch.Tensor) -> Quantized:
    """Float8 with a scale for each output; inputs have one for each token."""
    values, scales = _rows_of_fp8(weight)
    tensors = {"weight": values, "weight_scale": scales}

    def rounded(inputs: torch.Tensor) -> torch.Tensor:
        found, scale = _rows_of_fp8(inputs.float())
        return (found.float() * scale).to(inputs.dtype)

    return Quantized(tensors, values.float() * scales, rounded)


def _rows_of_fp8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    most = torch.finfo(torch.float8_e4m3fn).max
    scales = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / most
    return (rows / scales).clamp(-most, most).to(torch.float8_e4m3fn), scales


ROWS_OF_FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
FP8_GROUP = {
    "targets": ["Linear"],
    "weights": {**ROWS_OF_FP8, "strategy": "channel", "dynamic": False},
    "input_activations": {**ROWS_OF_FP8, "strategy": "token", "dynamic": True},
}

# By what model cards call it: how weights are quantized, and what `config.json` says of it.
FORMATS: Mapping[str, tuple[Callable[[torch.Tensor], Quantized], Mapping[str, Any]]] = {
    "AWQ": (
        awq,
        {
            "quant_method": "awq",
            "version": "gemm",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "modules_to_not_convert": ["lm_head"],
        },
    ),
    "FP8": (
        fp8,
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": FP8_GROUP},
            "ignore": ["lm_head"],
        },
    ),
}


def write_quantized(source: Path, folder: Path, name: str) -> None:
    """Write a checkpoint's quantized twin: all linear layers but `lm_head`."""
    quantize, about = FORMATS[name]
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in (FILE, "config.json"):
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config = {**config, "quantization_config": about, "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config))
    written: Tensors = {}
    for name, tensor in load_file(source / FILE).items():
        module, _, end = name.rpartition(".")
        if module.endswith("_proj") and end == "weight":
            made = quantize(tensor.float()).tensors
            written |= {f"{module}.{end}": one.contiguous() for end, one in made.items()}
        else:
            written[name] = tensor.half()
    save_file(written, folder / FILE, {"format": "pt"})


@torch.no_grad()
def quantized_twin(source: Path, name: str) -> Qwen3ForCausalLM:
    """The model that such a checkpoint is, computed in float32."""
    quantize, _ = FORMATS[name]
    model = Qwen3ForCausalLM.from_pretrained(source).float().eval()
    for weight in model.parameters():
        weight.copy_(weight.half())  # as they are stored that are not quantized
    source_weights = load_file(source / FILE)
    for part, module in model.named_modules():
        if isinstance(module, nn.Linear) and part.endswith("_proj"):
            made = quantize(source_weights[f"{part}.weight"].float())
            module.weight.copy_(made.weight)
            if (rounded := made.inputs) is not None:
                module.register_forward_pre_hook(
                    lambda _, given, rounded=rounded: (rounded(given[0]), *given[1:])
                )
    return model
