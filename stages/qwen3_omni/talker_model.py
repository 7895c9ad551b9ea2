"""The Qwen3-Omni talker as a vLLM model: codec frames from thinker tokens and hidden rows.

Math: transformers' Qwen3OmniMoeTalkerForConditionalGeneration. The backbone is vLLM's Qwen3-MoE
(q/k norm, routed experts and a gated shared expert: the same layers). A token's input is

    text:    text_projection(thinker embedding of a token id), looked up in a table made at load
    or       hidden_projection(thinker hidden state) at positions of images, sounds and videos
    codec:   + embedding of a special codec id in the assistant header
    decode:  + the sum of the codec embeddings of the whole previous frame
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerResizeMLP,
)
from vllm.config import VllmConfig

from omnistage.stages.qwen3_omni.step_schema import CODEC, TEXT, talker_schema
from omnistage.stages.qwen3_omni.talker_backbone import TalkerBackbone
from omnistage.stages.speech.frame_talker import FrameTalker
from omnistage.stages.vllm import step

PROJECTION_CHUNK = 8192


def talker_config(config: Any) -> Any:
    """`hf_overrides`: the talker's own configuration with our architecture.

    The size of the thinker's vocabulary comes along: the talker holds its projected embeddings.
    vLLM also calls this with an empty configuration, to ask for the model type.
    """
    if not isinstance(config, Qwen3OmniMoeConfig):
        return config
    talker = config.talker_config
    talker.architectures = ["OmnistageQwen3OmniTalker"]
    talker.thinker_vocab_size = config.thinker_config.text_config.vocab_size
    return talker


class Qwen3OmniTalker(FrameTalker):
    """Its inputs and its weights."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        text = config.text_config
        super().__init__(
            vllm_config,
            prefix,
            make_backbone=TalkerBackbone,
            schema=talker_schema(config),
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            codec_eos=config.codec_eos_token_id,
            predictor=config.code_predictor_config,
        )
        self.text_projection = Qwen3OmniMoeTalkerResizeMLP(config)
        self.hidden_projection = Qwen3OmniMoeTalkerResizeMLP(config)
        dtype = vllm_config.model_config.dtype
        self.text_table = nn.Parameter(
            torch.zeros(config.thinker_vocab_size, text.hidden_size, dtype=dtype),
            requires_grad=False,
        )

    # Inputs

    def header_inputs(self, columns: torch.Tensor) -> torch.Tensor:
        """Text or a hidden row, and a codec id."""
        text, codec = self.table.read(columns, TEXT), self.table.read(columns, CODEC)
        inputs = torch.where(text >= 0, self.text_table[text[:, 0].clamp_min(0)], 0)
        inputs = inputs + self.hidden_rows[columns[:, step.HIDDEN]]
        embedded = self.model.embed_input_ids(codec[:, 0].clamp_min(0))
        return torch.where(codec >= 0, inputs + embedded, inputs)

    def project_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Those of the thinker."""
        projected: torch.Tensor = self.hidden_projection(hidden)
        return projected

    # Weights

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take `talker.*` and the thinker's embedding table from a whole checkpoint."""
        thinker_table: list[torch.Tensor] = []
        loaded: set[str] = {"text_table"}
        predictor: list[tuple[str, torch.Tensor]] = []
        parameters = dict(self.named_parameters())

        def backbone() -> Iterable[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if name == "thinker.model.embed_tokens.weight":
                    thinker_table.append(weight)
                elif name.startswith("talker.code_predictor."):
                    predictor.append((name.removeprefix("talker.code_predictor."), weight))
                elif name.startswith("talker.model."):
                    name = name.removeprefix("talker.model.")
                    yield name.replace("codec_embedding.", "embed_tokens."), weight
                elif name.startswith("talker."):
                    name = name.removeprefix("talker.")
                    parameters[name].data[: len(weight)].copy_(weight)
                    loaded.add(name)

        loaded |= {f"model.{name}" for name in self.model.load_weights(backbone())}
        loaded |= {f"code_predictor.{name}" for name in self.code_predictor.load_weights(predictor)}
        if not thinker_table:
            raise ValueError("the checkpoint has no thinker.model.embed_tokens.weight")
        self._project_table(thinker_table[0])
        return loaded

    @torch.no_grad()
    def _project_table(self, embeddings: torch.Tensor) -> None:
        table = self.text_table
        for start in range(0, len(embeddings), PROJECTION_CHUNK):
            part = embeddings[start : start + PROJECTION_CHUNK].to(table.device, table.dtype)
            table[start : start + len(part)] = self.text_projection(part)
