"""A tiny embedding model with random weights, as sentence-transformers writes such folders."""

import json
import math
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3Model

from omnistage.stages.checkpoint.files import write_json, write_tokenizer
from omnistage.stages.checkpoint.tiny_text import HIDDEN_SIZE, text_settings
from omnistage.stages.checkpoint.tokenizer import make_tokenizer

SIZE = HIDDEN_SIZE
DIMENSIONS = [16, 32, SIZE]  # sizes to which its vectors may be cut
GAIN = 2.5  # what attention reads still matters after layers of random weights
MODULES = ("Transformer", "Pooling", "Normalize")
POOLING = "1_Pooling"


def write_tiny_embedding(folder: Path, seed: int = 0) -> None:
    """Write a Qwen3 of two layers whose last token is the text's vector, normalised."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, {"processor_class": None})
    config = Qwen3Config(
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        matryoshka_dimensions=DIMENSIONS,
        **text_settings(tokenizer),
    )
    model = Qwen3Model(config).float().eval()
    fill_weights(model, seed)
    model.save_pretrained(folder)
    _name_the_whole_class(folder / "config.json")
    _write_modules(folder)


def _name_the_whole_class(path: Path) -> None:
    """Names the class with a head, with weights that have none, as Qwen3-Embedding does."""
    config = json.loads(path.read_text())
    write_json(path, {**config, "architectures": ["Qwen3ForCausalLM"]})


def _write_modules(folder: Path) -> None:
    """How sentence-transformers pools: the last token, normalised."""
    paths = ("", POOLING, "2_Normalize")
    kinds = (f"sentence_transformers.models.{name}" for name in MODULES)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=1), encoding="utf-8")
    (folder / POOLING).mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": SIZE, "pooling_mode_lasttoken": True}
    write_json(folder / POOLING / "config.json", pooling)


@torch.no_grad()
def fill_weights(model: torch.nn.Module, seed: int) -> None:
    """Give every weight but the norms' its noise, so that texts and answers differ."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            scale = 1.0 if "embed" in name else GAIN / math.sqrt(parameter.shape[1])
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
