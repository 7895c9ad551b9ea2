"""The Qwen3-Omni talker as a vLLM model: codec frames from thinker tokens and hidden rows.

Math: transformers' Qwen3OmniMoeTalkerForConditionalGeneration. The backbone is vLLM's Qwen3-MoE
(q/k norm, routed experts and a gated shared expert: the same layers). A token's input is

    text:    text_projection(thinker embedding of a token id), looked up in a table made at load
    or       hidden_projection(thinker hidden state) at positions of images, sounds and videos
    codec:   + embedding of a special codec id in the assistant header
    decode:  + the sum of the codec embeddings of the whole previous frame
"""

from typing import Any

import torch
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerResizeMLP,
)
from vllm.config import VllmConfig

from omnistage.stages.qwen3_omni.step_schema import talker_schema
from omnistage.stages.qwen3_omni.talker_backbone import TalkerBackbone
from omnistage.stages.speech.code_predictor import projected
from omnistage.stages.speech.text_talker import TextTalker
from omnistage.stages.vllm.models.experts import share_experts


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


class Qwen3OmniTalker(TextTalker):
    """Speaks the thinker's tokens, and knows its hidden states at media."""

    text_embedding = "thinker.model.embed_tokens.weight"

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
        share_experts(self)
        self.take_text(config.thinker_vocab_size, Qwen3OmniMoeTalkerResizeMLP(config))
        self.hidden_projection = Qwen3OmniMoeTalkerResizeMLP(config)

    def project_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Projects the hidden states of the thinker."""
        net = self.hidden_projection
        inner = net.act_fn(projected(net.linear_fc1, hidden))
        return projected(net.linear_fc2, inner)
