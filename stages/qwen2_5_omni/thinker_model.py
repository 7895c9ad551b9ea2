"""vLLM's own Qwen2.5-Omni thinker, whose rows leave as the talker takes them.

A row is the last hidden state, after the final norm, and the embedding that entered: nothing where
the embedding is that of a medium. Without a bridge there are no rows.
"""

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2_5_omni_thinker import (
    Qwen2_5OmniThinkerDummyInputsBuilder,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniThinkerProcessingInfo,
)
from vllm.model_executor.models.utils import WeightsMapper
from vllm.multimodal import MULTIMODAL_REGISTRY

from omnistage.stages.qwen2_5_omni.heard_videos import ThinkerProcessor
from omnistage.stages.qwen2_5_omni.positions import prompt_positions
from omnistage.stages.speech.video_sound import in_order_of_tokens
from omnistage.stages.vllm.models.grids import grids_of
from omnistage.stages.vllm.models.nan_watch import NanWatch
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.step.step_table import StepTable


def thinker_config(config: Any) -> Any:
    """`hf_overrides`: the checkpoint's configuration with our architecture.

    vLLM applies it to a draft model's configuration too, which stays as it is; not beside a
    quantized model (stages/vllm/compat.py).
    """
    if hasattr(config, "thinker_config"):
        config.architectures = ["OmnistageQwen2_5OmniThinker"]
    return config


@MULTIMODAL_REGISTRY.register_processor(
    ThinkerProcessor,
    info=Qwen2_5OmniThinkerProcessingInfo,
    dummy_inputs=Qwen2_5OmniThinkerDummyInputsBuilder,
)
class Qwen2_5OmniThinker(Qwen2_5OmniThinkerForConditionalGeneration):
    """The in-tree class; its rows are what the step table exports."""

    table: StepTable | None = None
    # The names of an adapter that was trained with the thinker by itself. vLLM would ignore them.
    hf_to_vllm_mapper = Qwen2_5OmniThinkerForConditionalGeneration.hf_to_vllm_mapper | (
        WeightsMapper(
            orig_to_new_prefix={
                "model.": "language_model.model.",
                "lm_head.": "language_model.lm_head.",
            }
        )
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        device = torch.get_default_device()
        self._nan_watch = NanWatch.of_engine(vllm_config, device)
        if vllm_config.kv_transfer_config is not None:
            self.table = StepTable(vllm_config, device, HIDDEN_STATES)
            size = vllm_config.model_config.hf_config.thinker_config.text_config.hidden_size
            self.exported = self.table.make_export(size)
            # What the runner embeds is what it gives to the next forward, in the same order.
            self.is_medium = torch.zeros(self.table.max_tokens, 1, dtype=torch.bool, device=device)

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: torch.Tensor | None = None,
        **more: Any,
    ) -> torch.Tensor:
        """Embeds like the in-tree class, whatever part of a video and its audio a step has.

        The places of media are kept.
        """
        embeddings = list(multimodal_embeddings or ())
        sounds = [rows for rows in embeddings if getattr(rows, "modality", "") == "audio"]
        pictures = [rows for rows in embeddings if getattr(rows, "modality", "") != "audio"]
        if sounds and pictures:
            assert is_multimodal is not None  # the runner has placed them
            token_ids = input_ids.cpu()[is_multimodal.cpu()].tolist()
            embeddings = in_order_of_tokens(sounds, pictures, token_ids, self._modalities)
        if self.table is not None:
            here = self.is_medium[: len(input_ids), 0]
            if is_multimodal is None:
                here.zero_()
            else:
                here.copy_(is_multimodal, non_blocking=True)
        embedded: torch.Tensor = super().embed_input_ids(
            input_ids, embeddings, is_multimodal=is_multimodal, **more
        )
        return embedded

    @property
    def _modalities(self) -> dict[int, str]:
        """By the tokens that stand for them."""
        names = ("audio", "image", "video")
        return {getattr(self.config, f"{name}_token_index"): name for name in names}

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[torch.Tensor, int]:
        """Positions int64 [3, n] of a prompt, and what a later token's index lacks to its own.

        The in-tree method gives the tokens that open and close a heard video positions of their
        own, and says otherwise what follows one.
        """
        grids = grids_of(self.config, input_tokens, self.iter_mm_features(mm_features))
        positions = prompt_positions(len(input_tokens), grids)
        return torch.from_numpy(positions), int(positions.max()) + 1 - len(input_tokens)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Computes logits like the in-tree class, and counts steps with a NaN."""
        logits: torch.Tensor | None = super().compute_logits(hidden_states)
        if self._nan_watch is not None and logits is not None:
            self._nan_watch.look(logits)
        return logits

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Computes like the in-tree class, and writes the rows to the table's lines.

        The embeddings are taken before it: on a GPU without compiled code the layers add to them in
        place.
        """
        embedded = None if self.table is None else self._embedded(input_ids, inputs_embeds)
        hidden = super().forward(
            input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs
        )
        if self.table is not None and embedded is not None:
            self.exported[self.table.lines(len(hidden))] = hidden + embedded
        return hidden

    def _embedded(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        """Returns what enters, [n, hidden], without media."""
        if inputs_embeds is None:  # an engine that takes no media
            embedded: torch.Tensor = self.language_model.embed_input_ids(input_ids)
            return embedded
        return inputs_embeds.masked_fill(self.is_medium[: len(inputs_embeds)], 0)
