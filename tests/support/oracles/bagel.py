"""BAGEL's own code, recorded, and the calls and requests that must equal it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from references.bagel_inputs import (
    DRAWINGS,
    MAX_THINK_TOKENS,
    MAX_WORDS,
    Drawing,
    Talk,
    hash_of,
    images_of,
)
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

from omnistage.stages.bagel.texts import END, REASONING, START, text_ids

RECORDED = Path(__file__).parents[2] / "references" / "bagel.safetensors"


class RecordedDrawings:
    """The recorded drawings of a checkpoint; another one is an AssertionError."""

    def __init__(self, folder: Path) -> None:
        with safe_open(RECORDED, "pt") as file:
            assert file.metadata()["checkpoint"] == hash_of(folder), (
                "record tests/references/bagel.py"
            )
            self._tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    @property
    def table(self) -> torch.Tensor:
        """Return the table of places [64, 64] of their code."""
        table: torch.Tensor = self._tensors["table"]
        return table

    def pixels(self, name: str) -> npt.NDArray[np.uint8]:
        """Return an image [height, width, 3]."""
        pixels: npt.NDArray[np.uint8] = self._tensors[f"{name}.pixels"].numpy()
        return pixels

    def thought(self, name: str) -> str:
        """Return a thought; "" without one."""
        return bytes(self._tensors[f"{name}.thought"].tolist()).decode()

    def words(self, name: str) -> str:
        """Return an answer of words."""
        return bytes(self._tensors[f"{name}.words"].tolist()).decode()


class Reader:
    """The language model in transformers: a Qwen3 whose queries, keys and values have biases."""

    def __init__(self, folder: Path) -> None:
        text = json.loads((folder / "llm_config.json").read_text())
        theta = text.pop("rope_theta")
        own = {
            "model_type": "qwen3",
            "attention_bias": True,
            "head_dim": text["hidden_size"] // text["num_attention_heads"],
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        }
        self._model = Qwen3ForCausalLM(Qwen3Config(**(text | own))).eval()
        prefix = "language_model."
        weights = {
            name.removeprefix(prefix): one
            for name, one in load_file(folder / "ema.safetensors").items()
            if name.startswith(prefix) and "_moe_gen" not in name
        }
        lost = self._model.load_state_dict(weights, strict=False)
        assert not lost.unexpected_keys
        assert all(name.endswith("o_proj.bias") for name in lost.missing_keys)
        for layer in self._model.model.layers:
            torch.nn.init.zeros_(layer.self_attn.o_proj.bias)
        self._tokenizer = Qwen2Tokenizer.from_pretrained(folder)

    @torch.no_grad()
    def written(self, talk: Talk) -> list[int]:
        """Return the greedy answer's ids, with its end."""
        texts = [REASONING, *talk.texts] if talk.think else talk.texts
        start, end = self._tokenizer.convert_tokens_to_ids([START, END])
        ids = [one for text in texts for one in text_ids(self._tokenizer, text)]
        given = torch.tensor([[*ids, start]])
        made = self._model.generate(
            given, max_new_tokens=MAX_WORDS, do_sample=False, eos_token_id=end, pad_token_id=end
        )
        written: list[int] = made[0, given.shape[1] :].tolist()
        return written


def extra_of(drawing: Drawing) -> dict[str, Any]:
    """Return the arguments of a drawing's call that are no fields of a request."""
    thinks = {"think": True, "max_think_tokens": MAX_THINK_TOKENS} if drawing.think else {}
    return {"image_guidance_scale": drawing.scales[1], **thinks, **drawing.more}


def call_of(name: str) -> dict[str, Any]:
    """Return the arguments of the pipeline's call for a drawing."""
    drawing = DRAWINGS[name]
    height, width = drawing.size or (None, None)
    return {
        "prompt": drawing.prompt,
        "image": images_of(drawing) or None,
        "height": height,
        "width": width,
        "num_inference_steps": drawing.num_steps,
        "guidance_scale": drawing.scales[0],
        "generator": torch.Generator().manual_seed(drawing.seed),
        "output_type": "np",
        **extra_of(drawing),
    }
