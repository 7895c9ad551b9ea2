"""The Qwen3-TTS talker as a vLLM model: codec frames from the tokens of a text.

Math: Qwen3TTSTalkerForConditionalGeneration of qwen-tts. The backbone is vLLM's dense Qwen3. A
token's input is that of every talker that speaks token ids
(stages/speech/text_talker.py), but of a Base model also

    voice:   the vector of a reference sound, which came with the request, at one row of the prompt
    frame:   the sum of the codec embeddings of a frame of that sound
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
)
from vllm.config import VllmConfig

from omnistage.stages.qwen3_tts.step_schema import FRAME, VOICE, talker_schema
from omnistage.stages.qwen3_tts.talker_backbone import TalkerBackbone
from omnistage.stages.speech.code_predictor import CodePredictor
from omnistage.stages.speech.columns import CODEC
from omnistage.stages.speech.text_talker import TextTalker
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.step import StartedRequest
from omnistage.stages.vllm.step.transfer import to_device

PREDICTOR_NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "num_code_groups",
)


class TextProjection(nn.Module):
    """From the width of the text's embeddings to the talker's."""

    def __init__(self, text_size: int, size: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_size, text_size)
        self.linear_fc2 = nn.Linear(text_size, size)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Row by row."""
        projected: torch.Tensor = self.linear_fc2(functional.silu(self.linear_fc1(embeddings)))
        return projected


def predictor_config(told: Mapping[str, object]) -> Qwen3OmniMoeTalkerCodePredictorConfig:
    """Returns the predictor's configuration; Qwen3-Omni's code predictor is the same module."""
    return Qwen3OmniMoeTalkerCodePredictorConfig(
        **{name: told[name] for name in PREDICTOR_NAMES if name in told},
        rope_parameters={"rope_type": "default", "rope_theta": told["rope_theta"]},
        sliding_window=told["sliding_window"] if told.get("use_sliding_window") else None,
    )


class Qwen3TTSTalker(TextTalker):
    """Speaks a given text."""

    text_embedding = "talker.model.text_embedding.weight"

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        size = config.hidden_size
        super().__init__(
            vllm_config,
            prefix,
            make_backbone=TalkerBackbone,
            schema=talker_schema(config.num_code_groups, config.takes_frames),
            vocab_size=config.vocab_size,
            hidden_size=size,
            codec_eos=config.codec_eos_token_id,
            predictor=predictor_config(config.code_predictor_config),
        )
        self.take_text(config.text_vocab_size, TextProjection(config.text_hidden_size, size))
        num_voices = self.table.num_rows + 1 if config.takes_frames else 0
        self.voices = torch.zeros(num_voices, size, dtype=vllm_config.model_config.dtype)

    def make_predictor(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> CodePredictor:
        """It may have another width than the talker."""
        size, takes_frames = self.config.hidden_size, self.config.takes_frames
        return CodePredictor(config, talker_size=size, embeds_frames=takes_frames)

    def _start_requests(self, started: list[StartedRequest]) -> None:
        super()._start_requests(started)
        for request in started:
            told = request.options.model.get("voice") if request.options is not None else None
            if told is not None:
                voice = np.frombuffer(told, np.float32).copy()
                self.voices[request.row] = to_device(voice, self.voices.device)

    def header_inputs(self, columns: torch.Tensor) -> torch.Tensor:
        """Returns a Base model's inputs with the request's voice, and with frames of audio."""
        inputs = super().header_inputs(columns)
        if not self.config.takes_frames:
            return inputs
        is_voice = self.table.read(columns, CODEC) == VOICE
        rows = columns[:, step.ROW].clamp_min(0)
        inputs = torch.where(is_voice, inputs + self.voices[rows], inputs)
        codes = self.table.read(columns, FRAME)
        frames = self._embedded(codes.clamp_min(0).long())
        return torch.where(codes[:, :1] >= 0, inputs + frames, inputs)

    def _embedded(self, codes: torch.Tensor) -> torch.Tensor:
        """The sum of the codec embeddings of frames [n, codebooks]."""
        residuals = self.code_predictor.embedded(codes[:, 1:])
        first = self.model.embed_input_ids(codes[:, 0])
        return (first + residuals).to(first.dtype)
