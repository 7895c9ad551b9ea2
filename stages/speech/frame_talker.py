"""A talker that speaks in codec frames: what a step of its model is, whatever its backbone is.

A token's input is what its columns and rows say (a family's `header_inputs`), and for decode tokens
the sum of the codec embeddings of the whole previous frame. The residual codes of frame t are
computed at the start of the forward after code 0 was sampled, from the hidden state that sampled it
(`last_hidden`).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
)
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import maybe_prefix

from omnistage.stages.speech.code_predictor import CodePredictor
from omnistage.stages.speech.code_predictor_graphs import CodePredictorGraphs
from omnistage.stages.speech.columns import POSITION
from omnistage.stages.vllm.models.nan_watch import NanWatch
from omnistage.stages.vllm.models.step_model import PlainPositions, StepModel
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.request_options import CodeSampling
from omnistage.stages.vllm.step.step import StartedRequest
from omnistage.stages.vllm.step.step_schema import NO_FRAME, StepSchema
from omnistage.stages.vllm.step.step_table import StepTable
from omnistage.stages.vllm.step.transfer import to_device

NUM_SUPPRESSED = 1024  # the references suppress the top ids of the vocabulary but the end


def graph_sizes(vllm_config: VllmConfig) -> list[int]:
    """Batch sizes that get a graph of the code predictor: as vLLM's, up to all rows at once."""
    compilation = vllm_config.compilation_config
    if compilation.cudagraph_mode == CUDAGraphMode.NONE:
        return []
    num_rows = vllm_config.scheduler_config.max_num_seqs
    sizes = compilation.cudagraph_capture_sizes or []
    return [*(size for size in sizes if size < num_rows), num_rows]


def is_recorded(inputs: torch.Tensor) -> bool:
    """Returns whether what is computed of a tensor becomes part of a CUDA graph."""
    return inputs.is_cuda and torch.cuda.is_current_stream_capturing()


class FrameTalker(StepModel, PlainPositions):
    """Forward of one engine step over the bridge's step table.

    `model` is the backbone, called with positions [axes, n] and embeddings [n, hidden]; its
    `embed_input_ids` has the codec embeddings of code 0. The schema has a column `position`.
    """

    suppressed: torch.Tensor

    def __init__(
        self,
        vllm_config: VllmConfig,
        prefix: str,
        *,
        make_backbone: Callable[..., nn.Module],
        schema: StepSchema,
        vocab_size: int,
        hidden_size: int,
        codec_eos: int,
        predictor: Qwen3OmniMoeTalkerCodePredictorConfig,
    ) -> None:
        super().__init__()
        device = torch.get_default_device()
        dtype = vllm_config.model_config.dtype
        self.config = vllm_config.model_config.hf_config
        self.model: Any = make_backbone(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model")
        )
        self.codec_head = ParallelLMHead(
            vocab_size, hidden_size, prefix=maybe_prefix(prefix, "codec_head")
        )
        self.logits_processor = LogitsProcessor(vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.code_predictor = self.make_predictor(predictor)
        suppressed = torch.zeros(vocab_size, dtype=torch.bool)
        suppressed[vocab_size - NUM_SUPPRESSED :] = True
        suppressed[codec_eos] = False
        self.register_buffer("suppressed", suppressed, persistent=False)
        self.codec_eos = codec_eos

        self._nan_watch = NanWatch.of_engine(vllm_config, device)
        self.table = table = StepTable(vllm_config, device, schema)
        table.on_start, table.on_hidden = self._start_requests, self._take_hidden
        sizes = graph_sizes(vllm_config) if device.type == "cuda" else []
        self._predictor_graphs = CodePredictorGraphs(self.code_predictor, sizes)
        table.on_ready = self._record_graphs
        num_rows, num_tokens = table.num_rows + 1, table.max_tokens + 1
        zeros = torch.zeros
        self.last_hidden = zeros(num_rows, hidden_size, dtype=dtype)
        self.hidden_rows = zeros(num_tokens, hidden_size, dtype=dtype)
        self.inputs_buffer = zeros(table.max_tokens, hidden_size, dtype=dtype)
        # One column more than is ever used: a slice never is contiguous, so its strides are always
        # the same. The backbone is compiled once, for the strides of the first call.
        axes = next(column.width for column in schema.columns if column.name == POSITION)
        self.positions_buffer = zeros(axes, table.max_tokens + 1, dtype=torch.int64)
        self.temperature = zeros(num_rows, dtype=torch.float32)
        self.top_p = torch.ones(num_rows, dtype=torch.float32)
        self.top_k = zeros(num_rows, dtype=torch.int64)
        self.seed = zeros(num_rows, dtype=torch.int64)
        self.codes = table.make_export(predictor.num_code_groups)

    # What a family says

    @abstractmethod
    def header_inputs(self, columns: torch.Tensor) -> torch.Tensor:
        """The inputs [n, hidden] of a step's tokens but for the previous frames of decodes."""

    @abstractmethod
    def project_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows that came from upstream [n, width] as inputs [n, hidden]."""

    def make_predictor(self, config: Qwen3OmniMoeTalkerCodePredictorConfig) -> CodePredictor:
        """Returns what computes the residual codes."""
        return CodePredictor(config)

    # The step's data, before the forward

    @torch.inference_mode()
    def _record_graphs(self) -> None:
        none = torch.zeros_like(self.seed)
        self._predictor_graphs.record(self._predictor_arguments(none, none, none))

    def _start_requests(self, started: list[StartedRequest]) -> None:
        whole, real = [], []
        for request in started:
            sampling = CodeSampling() if request.options is None else request.options.sampling
            whole.append((request.row, sampling.top_k, sampling.seed))
            real.append((sampling.temperature, sampling.top_p))
        device = self.seed.device
        rows, top_k, seed = to_device(np.array(whole, np.int64).T, device)
        temperature, top_p = to_device(np.array(real, np.float32).T, device)
        self.top_k[rows], self.seed[rows] = top_k, seed
        self.temperature[rows], self.top_p[rows] = temperature, top_p

    def _take_hidden(self, hidden: torch.Tensor) -> None:
        self.hidden_rows[1 : len(hidden) + 1] = self.project_hidden(hidden)

    # What vLLM calls

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Codec embeddings [n, hidden]."""
        return self.model.embed_input_ids(input_ids)

    def run_step(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states [n, hidden] of the runner's n tokens."""
        num_tokens = input_ids.shape[0]
        inputs = self.header_inputs(columns)
        self._add_frames(inputs, input_ids, columns, lines)
        self.inputs_buffer[:num_tokens] = inputs
        self.positions_buffer[:, :num_tokens] = self.table.read(columns, POSITION).T
        hidden = self.model(self.positions_buffer[:, :num_tokens], self.inputs_buffer[:num_tokens])
        rows = torch.where(columns[:, step.LAST] > 0, columns[:, step.ROW], 0)
        self.last_hidden[rows.long()] = hidden
        return hidden

    def _add_frames(
        self,
        inputs: torch.Tensor,
        input_ids: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> None:
        """Add the previous frame to decode tokens' inputs and store its codes.

        Only as many tokens as decode run, found by sorting: no shape depends on data. What vLLM
        records as a graph is for batches of any kind, so there it is as many as may decode, in
        kernels that become part of it.
        """
        num_tokens, num_decodes = inputs.shape[0], self.table.num_decodes
        which: torch.Tensor | None = None
        predict: CodePredictor | CodePredictorGraphs = self._predictor_graphs
        if is_recorded(inputs):
            predict, num_decodes = self.code_predictor, min(num_tokens, self.table.num_rows)
        if num_decodes == 0:
            return
        if num_decodes < num_tokens:
            order = torch.argsort(columns[:, step.FRAME], descending=True, stable=True)
            which = order[:num_decodes]
            columns, lines, input_ids = columns[which], lines[which], input_ids[which]
        is_decode = columns[:, step.FRAME] >= 0
        rows = columns[:, step.ROW].clamp_min(0)
        code0 = torch.where(is_decode, input_ids, 0).long().clamp(0, self.suppressed.shape[0] - 1)
        frame = columns[:, step.FRAME].long()
        codes, frames = predict(**self._predictor_arguments(rows, code0, frame))
        is_end = input_ids == self.codec_eos
        self.codes[lines] = codes.masked_fill(is_end[:, None], NO_FRAME).int()
        frames = torch.where(is_decode[:, None], frames, 0)
        if which is None:
            inputs += frames
        else:
            inputs.index_add_(0, which, frames)

    def _predictor_arguments(
        self, rows: torch.Tensor, code0: torch.Tensor, frame: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {
            "last_hidden": self.last_hidden[rows],
            "code0": code0,
            "code0_embedding": self.model.embed_input_ids(code0),
            "temperature": self.temperature[rows],
            "top_k": self.top_k[rows],
            "top_p": self.top_p[rows],
            "seed": self.seed[rows],
            "frame": frame,
        }

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits of code 0, -inf for ids that are no code; steps with a NaN are counted."""
        logits = self.logits_processor(self.codec_head, hidden_states)
        if logits is not None:
            if self._nan_watch is not None:
                self._nan_watch.look(logits)
            logits = logits.masked_fill(self.suppressed, float("-inf"))
        return logits
