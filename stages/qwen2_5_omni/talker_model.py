"""The Qwen2.5-Omni talker as a vLLM model: codes from the thinker's rows.

Math: transformers' Qwen2_5OmniTalkerForConditionalGeneration. A token's input is the projection of
the sum of

    row:    the thinker's row of this position, while there is one
    text:   else the thinker's embedding of the speaker's token, of the end of text, or of none
    code:   the talker's embedding of its own id, but for the places of the thinker's prompt

A code leaves when it is fed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import Qwen2_5OmniConfig
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import maybe_prefix

from omnistage.stages.qwen2_5_omni.step_schema import TEXT, talker_schema
from omnistage.stages.qwen2_5_omni.talker_backbone import TalkerBackbone
from omnistage.stages.speech.code_predictor import projected
from omnistage.stages.speech.columns import POSITION
from omnistage.stages.vllm.models.nan_watch import NanWatch
from omnistage.stages.vllm.models.shards import take_weight
from omnistage.stages.vllm.models.step_model import PlainPositions, StepModel
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.step_schema import NO_FRAME
from omnistage.stages.vllm.step.step_table import StepTable

THINKER_TABLE = "thinker.model.embed_tokens.weight"
CODEC_TABLE = "model.embed_tokens.weight"


def talker_config(config: Any, text_ids: Sequence[int]) -> Any:
    """`hf_overrides`: the talker's own configuration with our architecture.

    `text_ids` are those of the thinker whose embeddings it takes; the number of codes is that of
    the decoder's embeddings. vLLM also calls this with an empty configuration, to ask for the model
    type.
    """
    if not isinstance(config, Qwen2_5OmniConfig):
        return config
    talker = config.talker_config
    talker.architectures = ["OmnistageQwen2_5OmniTalker"]
    talker.qkv_bias = True
    talker.text_ids = list(text_ids)
    talker.num_codes = config.token2wav_config.dit_config.num_embeds + 1
    return talker


class Qwen2_5OmniTalker(StepModel, PlainPositions):
    """Forward of one engine step over the bridge's step table."""

    is_code: torch.Tensor
    suppressed: torch.Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        device, dtype = torch.get_default_device(), vllm_config.model_config.dtype
        width = config.embedding_size
        self.model = TalkerBackbone(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.codec_embedding = VocabParallelEmbedding(config.vocab_size, width)
        self.codec_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "codec_head")
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.thinker_to_talker_proj = nn.Linear(width, config.hidden_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.text_table = nn.Parameter(
            torch.zeros(len(config.text_ids), width, dtype=dtype), requires_grad=False
        )
        is_code = torch.arange(config.vocab_size) < config.num_codes
        is_code[[config.tts_codec_start_token_id, *self._ends]] = False
        suppressed = ~is_code
        suppressed[self._ends] = False
        self.register_buffer("is_code", is_code, persistent=False)
        self.register_buffer("suppressed", suppressed, persistent=False)

        self._nan_watch = NanWatch.of_engine(vllm_config, device)
        self.table = table = StepTable(vllm_config, device, talker_schema(config))
        table.on_hidden = self._take_hidden
        self.hidden_rows = torch.zeros(table.max_tokens + 1, width, dtype=dtype)
        self.inputs_buffer = torch.zeros(table.max_tokens, config.hidden_size, dtype=dtype)
        # One column more than is ever used: a slice never is contiguous, so its strides are always
        # the same. The backbone is compiled once, for the strides of the first call.
        self.positions_buffer = torch.zeros(3, table.max_tokens + 1, dtype=torch.int64)
        self.codes = table.make_export(1)

    @property
    def _ends(self) -> list[int]:
        return [self.config.tts_codec_pad_token_id, self.config.tts_codec_end_token_id]

    def _take_hidden(self, hidden: torch.Tensor) -> None:
        self.hidden_rows[1 : len(hidden) + 1] = hidden

    # What vLLM calls

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The talker's inputs of codes alone [n, hidden]."""
        return projected(self.thinker_to_talker_proj, self.codec_embedding(input_ids))

    def run_step(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states [n, hidden] of the runner's n tokens."""
        num_tokens = input_ids.shape[0]
        ids = input_ids.clamp(0, self.config.vocab_size - 1).long()
        self.codes[lines, 0] = torch.where(self.is_code[ids], ids, NO_FRAME).int()
        self.inputs_buffer[:num_tokens] = projected(
            self.thinker_to_talker_proj, self._sums(columns, ids)
        )
        self.positions_buffer[:, :num_tokens] = self.table.read(columns, POSITION).T
        hidden: torch.Tensor = self.model(
            self.positions_buffer[:, :num_tokens], self.inputs_buffer[:num_tokens]
        )
        return hidden

    def _sums(self, columns: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        text = self.table.read(columns, TEXT)
        sums = self.hidden_rows[columns[:, step.HIDDEN]]
        sums = sums + torch.where(text >= 0, self.text_table[text[:, 0].clamp_min(0)], 0)
        is_own = (columns[:, step.FRAME] >= 0) | (ids != self.config.tts_codec_mask_token_id)
        return sums + torch.where(is_own[:, None], self.codec_embedding(ids), 0)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits of codes and ends, -inf for all else; steps with a NaN are counted."""
        logits = self.logits_processor(self.codec_head, hidden_states)
        if logits is not None:
            if self._nan_watch is not None:
                self._nan_watch.look(logits)
            logits = logits.masked_fill(self.suppressed, float("-inf"))
        return logits

    # Weights

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take `talker.*` and a few of the thinker's embeddings from a whole checkpoint."""
        loaded: set[str] = set()
        parameters = dict(self.named_parameters())

        def take(name: str, weight: torch.Tensor) -> None:
            take_weight(parameters[name], weight)
            loaded.add(name)

        def backbone() -> Iterable[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if name == THINKER_TABLE:
                    take("text_table", weight[self.config.text_ids])
                elif name == f"talker.{CODEC_TABLE}":
                    take("codec_embedding.weight", weight)
                elif name.startswith("talker.model."):
                    yield name.removeprefix("talker.model."), weight
                elif name.startswith("talker."):
                    take(name.removeprefix("talker."), weight)

        filled = {f"model.{name}" for name in self.model.load_weights(backbone())}
        if "text_table" not in loaded:
            raise ValueError(f"the checkpoint has no {THINKER_TABLE}")
        return filled | loaded
