"""BAGEL's language model for what is read, in vLLM: Qwen2 with norms of queries and keys.

Of the published layers, which are there twice, it has the half that reads texts. Keys and values
of a text are those that BAGEL's flow sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Config
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

from omnistage.stage_configs.json_types import Json
from omnistage.stages.vllm.models.shards import weights_below

ARCHITECTURE = "OmnistageBagelLlm"
LANGUAGE_MODEL = "language_model."
DRAWING = "_moe_gen"  # in the names of weights of what is drawn
DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """A checkpoint's configuration as vLLM gets it: `hf_overrides`.

    `text`: its `llm_config.json`. `end`: the id that ends what the model writes.
    """

    text: Json
    end: int

    def __call__(self, config: Any) -> Any:
        """Return the language model as a Qwen2 with our architecture.

        vLLM also calls this with an empty configuration, to ask for the model type. Raises
        ValueError for a rotation that is not served.
        """
        if getattr(config, "model_type", None) != "bagel":
            return config
        text = dict(self.text)
        if text.pop("rope_scaling", None):
            raise ValueError("llm_config.json: rope_scaling is not served")
        theta = text.pop("rope_theta", DEFAULT_THETA)
        own = {
            "qk_norm": True,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "eos_token_id": self.end,
            "dtype": config.dtype,
            "architectures": [ARCHITECTURE],
        }
        return Qwen2Config(**{**text, **own})


class BagelLlm(Qwen2ForCausalLM):
    """vLLM's Qwen2 of BAGEL's weights for texts."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the language model, and nothing of what sees or draws."""
        own = weights_below(weights, LANGUAGE_MODEL, DRAWING)
        loaded: set[str] = super().load_weights(own)
        return loaded
