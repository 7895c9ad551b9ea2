"""The VoxCPM2 talker as a vLLM model: a patch of latents a step, made inside of the forward.

Math: VoxCPM2Model.inference of voxcpm. A token's input is

    text:   the embedding of a text's token id
    audio:  in the prompt, the encoded patch of a reference sound, which came with the request
    decode: the encoded patch of the step before, which this step's forward makes at its start, out
            of the rows that decided that it follows (`last_rows`), the patch before it, and noise

An id says no more than whether a patch follows, so what leaves of a request are the patches of the
ids that were fed. The rows of a forward are the logits themselves: after STOP, END alone.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import maybe_prefix

from omnistage.stages.speech.columns import TEXT
from omnistage.stages.speech.frame_talker import is_recorded
from omnistage.stages.vllm.models.nan_watch import NanWatch
from omnistage.stages.vllm.models.shards import Part, joined_name, take_weight
from omnistage.stages.vllm.models.step_model import StepModel
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.step import StartedRequest
from omnistage.stages.vllm.step.step_schema import NO_FLOAT_FRAME
from omnistage.stages.vllm.step.step_table import StepTable
from omnistage.stages.vllm.step.transfer import to_device
from omnistage.stages.voxcpm2.flow import NUM_CONDITIONS, PatchDit, PatchFlow, normal_noise
from omnistage.stages.voxcpm2.minicpm import PatchEncoder
from omnistage.stages.voxcpm2.settings import settings_of
from omnistage.stages.voxcpm2.step_schema import (
    AUDIO,
    CONTINUES,
    END,
    MAX_REFERENCE,
    NUM_IDS,
    SCHEMA,
    STOP,
)
from omnistage.stages.voxcpm2.talker_backbone import TalkerBackbone

NEVER = float("-inf")
UNLIKELY = -1e4  # of ids that are taken only if END is forbidden
# A checkpoint's parts that are the backbone's.
BACKBONE = ("base_lm.", "residual_lm.", "fsq_layer.", "fusion_concat_proj.")
EMBEDDING = "base_lm.embed_tokens.weight"


class VoxCPM2Talker(StepModel):
    """Forward of one engine step over the bridge's step table."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        device, dtype = torch.get_default_device(), vllm_config.model_config.dtype
        self.config = vllm_config.model_config.hf_config
        settings = self._settings = settings_of(self.config.voxcpm2)
        lm, patch = settings.lm_config, (settings.patch_size, settings.feat_dim)
        size = lm.hidden_size
        dit = settings.dit_config.layers(lm)
        encoder = settings.encoder_config.layers(lm)
        self.model = TalkerBackbone(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), settings=settings
        )
        self.embed_tokens = nn.Embedding(lm.vocab_size, size)
        self.feat_encoder = PatchEncoder(encoder, *patch)
        self.feat_decoder = PatchFlow(PatchDit(dit, *patch), settings.dit_config.dit_mean_mode)
        self.enc_to_lm_proj = nn.Linear(encoder.hidden_size, size)
        self.lm_to_dit_proj = nn.Linear(size, dit.hidden_size)
        self.res_to_dit_proj = nn.Linear(size, dit.hidden_size)
        self.stop_proj = nn.Linear(size, size)
        self.stop_head = nn.Linear(size, 2, bias=False)

        self._nan_watch = NanWatch.of_engine(vllm_config, device)
        self.table = table = StepTable(vllm_config, device, SCHEMA)
        table.on_start, table.on_ready = self._start_requests, self.feat_decoder.prepare
        num_rows, zeros = table.num_rows + 1, torch.zeros
        self.last_rows = zeros(num_rows, 2 * size, dtype=dtype)
        self.patch = zeros(num_rows, *patch, dtype=dtype)  # the latest of each request
        self.reference = zeros(num_rows, MAX_REFERENCE, size, dtype=dtype)
        self.seed = zeros(num_rows, dtype=torch.int64)
        self.inputs_buffer = zeros(table.max_tokens, size, dtype=dtype)
        self.positions_buffer = zeros(table.max_tokens, dtype=torch.int64)
        self.is_audio_buffer = zeros(table.max_tokens, 1, dtype=torch.bool)
        self.patches = table.make_export(*patch)

    # The step's data, before the forward

    @torch.inference_mode()
    def _start_requests(self, started: list[StartedRequest]) -> None:
        device, dtype = self.patch.device, self.patch.dtype
        shape = -1, *self.patch.shape[1:]
        for request in started:
            options = request.options
            told = {} if options is None else options.model
            self.seed[request.row] = 0 if options is None else options.sampling.seed
            self.patch[request.row] = 0
            if AUDIO not in told:
                continue
            latents = np.frombuffer(told[AUDIO], np.float32).reshape(shape).copy()
            patches = to_device(latents, device).to(dtype)
            self.reference[request.row, : len(patches)] = self._encoded(patches)
            if CONTINUES in told:
                self.patch[request.row] = patches[-1]

    # What vLLM calls

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Rows of a text's ids [n, hidden]."""
        embedded: torch.Tensor = self.embed_tokens(input_ids)
        return embedded * self._settings.lm_config.embedding_scale

    def run_step(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [n, ids] of the runner's n tokens."""
        num_tokens = input_ids.shape[0]
        inputs = self._prompt_inputs(columns)
        is_decode = columns[:, step.FRAME, None] >= 0
        self._make_patches(inputs, input_ids, columns, lines)
        here = slice(num_tokens)
        self.inputs_buffer[here] = inputs
        self.positions_buffer[here] = positions
        self.is_audio_buffer[here] = is_decode | (self.table.read(columns, AUDIO) >= 0)
        rows = self.model(
            self.positions_buffer[here], self.inputs_buffer[here], self.is_audio_buffer[here]
        )
        last = torch.where(columns[:, step.LAST] > 0, columns[:, step.ROW], 0)
        self.last_rows[last.long()] = rows
        return self._logits(rows.chunk(2, dim=-1)[0], input_ids)

    def _prompt_inputs(self, columns: torch.Tensor) -> torch.Tensor:
        text, audio = self.table.read(columns, TEXT), self.table.read(columns, AUDIO)
        rows = columns[:, step.ROW].clamp_min(0)
        reference = self.reference[rows, audio[:, 0].clamp_min(0)]
        return torch.where(audio >= 0, reference, self.embed_input_ids(text[:, 0].clamp_min(0)))

    def _make_patches(
        self,
        inputs: torch.Tensor,
        input_ids: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> None:
        """Make the patch of each decode token, store it, and put it into the token's input.

        Only as many tokens as decode run, found by sorting: no shape depends on data. What vLLM
        records as a graph is for batches of any kind, so there it is as many as may decode.
        """
        num_tokens, num_decodes = inputs.shape[0], self.table.num_decodes
        if is_recorded(inputs):
            num_decodes = min(num_tokens, self.table.num_rows)
        if num_decodes == 0:
            return
        frames = columns[:, step.FRAME]
        which = torch.argsort(frames, descending=True, stable=True)[:num_decodes]
        frame, columns, lines = frames[which].long(), columns[which], lines[which]
        is_decode = frame >= 0
        rows = torch.where(is_decode, columns[:, step.ROW], 0).long()
        before = self.patch[rows]
        noise = normal_noise(self.seed[rows], frame, before[0].numel())
        latent_first = noise.view(len(rows), before.shape[2], before.shape[1])  # the reference's
        patch = self.feat_decoder(
            self._conditions(self.last_rows[rows]),
            before,
            latent_first.transpose(1, 2).to(before.dtype),
        )
        self.patch[rows] = patch
        is_end = (input_ids[which] == END)[:, None, None]
        self.patches[lines] = patch.masked_fill(is_end, NO_FLOAT_FRAME)
        inputs[which] = torch.where(is_decode[:, None], self._encoded(patch), inputs[which])

    def _conditions(self, rows: torch.Tensor) -> torch.Tensor:
        hidden, residual = rows.chunk(NUM_CONDITIONS, dim=-1)
        return torch.stack([self.lm_to_dit_proj(hidden), self.res_to_dit_proj(residual)], dim=1)

    def _encoded(self, patches: torch.Tensor) -> torch.Tensor:
        """Patches [n, patch, latent] as inputs [n, hidden]."""
        encoded: torch.Tensor = self.enc_to_lm_proj(self.feat_encoder(patches))
        return encoded

    def _logits(self, hidden: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        stop = self.stop_head(functional.silu(self.stop_proj(hidden))).float()
        logits = functional.pad(stop, (0, NUM_IDS - stop.shape[-1]), value=NEVER)
        ends = torch.full_like(logits, UNLIKELY)
        ends[:, END] = 0.0
        return torch.where((input_ids == STOP)[:, None], ends, logits)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return the logits; steps with a NaN are counted."""
        if self._nan_watch is not None:
            self._nan_watch.look(hidden_states)
        return hidden_states

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take a whole checkpoint, but for the audio VAE."""
        parameters = dict(self.named_parameters())
        loaded: set[str] = set()
        for name, weight in weights:
            part: Part = None
            if name == EMBEDDING:
                name = "embed_tokens.weight"
            elif name.startswith(BACKBONE):
                name, part = joined_name(f"model.{name}")
            parameter: Any = parameters.get(name)
            if parameter is None:
                continue
            take_weight(parameter, weight, part)
            loaded.add(name)
        return loaded
