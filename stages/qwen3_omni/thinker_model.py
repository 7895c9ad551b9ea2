"""vLLM's own Qwen3-Omni thinker with a tap: the hidden states that enter one layer.

Without a bridge there is no tap. M-RoPE positions are the talker's, on every version of vLLM.
`hidden_states[k]` of transformers is the input of layer k; in vLLM a layer's input is the sum of
`hidden_states` and `residual`. The two agree only above the layers that deepstack adds to.
"""

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_omni_moe_thinker import (
    Qwen3OmniMoeThinkerDummyInputsBuilder,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerMultiModalProcessor,
    Qwen3OmniMoeThinkerProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from omnistage.stages.speech.video_sound import HearsVideos, in_order_of_tokens
from omnistage.stages.vllm.models.experts import share_experts
from omnistage.stages.vllm.models.grids import grids_of
from omnistage.stages.vllm.models.nan_watch import NanWatch
from omnistage.stages.vllm.models.rope import rope_positions
from omnistage.stages.vllm.models.tap import Tap
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.step.step_table import StepTable


def thinker_config(config: Any) -> Any:
    """`hf_overrides`: the checkpoint's configuration with our architecture.

    vLLM applies it to a draft model's configuration too, which stays as it is; not beside a
    quantized model (stages/vllm/compat.py).
    """
    if hasattr(config, "thinker_config"):
        config.architectures = ["OmnistageQwen3OmniThinker"]
    return config


class ThinkerProcessor(HearsVideos, Qwen3OmniMoeThinkerMultiModalProcessor):
    """The in-tree class; videos are heard."""


@MULTIMODAL_REGISTRY.register_processor(
    ThinkerProcessor,
    info=Qwen3OmniMoeThinkerProcessingInfo,
    dummy_inputs=Qwen3OmniMoeThinkerDummyInputsBuilder,
)
class Qwen3OmniThinker(Qwen3OmniMoeThinkerForConditionalGeneration):
    """The in-tree class; its results are what the step table exports."""

    table: StepTable | None = None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        share_experts(self)
        # By this name vLLM's drafters ask a multimodal model for it.
        self.config.image_token_index = self.config.image_token_id
        self._nan_watch = NanWatch.of_engine(vllm_config, torch.get_default_device())
        if vllm_config.kv_transfer_config is not None:
            self._add_tap(vllm_config)

    def _add_tap(self, vllm_config: VllmConfig) -> None:
        config = vllm_config.model_config.hf_config
        layer = config.talker_config.accept_hidden_layer
        num_deepstack = len(config.thinker_config.vision_config.deepstack_visual_indexes)
        if layer <= num_deepstack:
            raise ValueError(
                f"accept_hidden_layer is {layer}; it must be greater than the number of deepstack "
                f"levels, {num_deepstack}: below, vLLM's layers and transformers' differ"
            )
        num_layers = config.thinker_config.text_config.num_hidden_layers
        if layer >= num_layers:
            raise ValueError(
                f"accept_hidden_layer is {layer}; the thinker has {num_layers} layers, and what "
                "leaves is what one of them takes"
            )
        device = torch.get_default_device()
        self.table = StepTable(vllm_config, device, HIDDEN_STATES)
        model = self.language_model.model
        if not model.start_layer <= layer < model.end_layer:
            return  # it is another pipeline rank's
        text = config.thinker_config.text_config
        dtype = vllm_config.model_config.dtype
        self.tap = Tap(self.table.max_tokens, text.hidden_size, dtype, device)
        self.tap.attach(model.layers[layer])
        self.exported = self.table.make_export(text.hidden_size)

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[torch.Tensor, int]:
        """Positions int64 [3, n] of a prompt, and what a later token's index lacks to its own.

        The in-tree method of vLLM 0.26 and 0.28 puts an image's and a video's positions one token
        too late, 0.32's does not; it says wrongly what follows a video with a short sound.
        """
        grids = grids_of(self.config, input_tokens, self.iter_mm_features(mm_features))
        positions = rope_positions(len(input_tokens), grids)
        return torch.from_numpy(positions), int(positions.max()) + 1 - len(input_tokens)

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embeds like the in-tree class, whatever part of a video and its audio a step has."""
        # Its forward clears what deepstack adds; a step that is one CUDA graph does not run it.
        self._clear_deepstack_input_embeds(getattr(self, "deepstack_input_embeds_num_tokens", 0))
        embeddings = list(multimodal_embeddings or ())
        widths = {rows.shape[-1] for rows in embeddings}
        if is_multimodal is not None and len(widths) > 1:
            token_ids = input_ids.cpu()[is_multimodal.cpu()].tolist()
            # A picture's rows are wider: they have what deepstack adds to.
            sounds = [rows for rows in embeddings if rows.shape[-1] == min(widths)]
            pictures = [rows for rows in embeddings if rows.shape[-1] > min(widths)]
            embeddings = in_order_of_tokens(sounds, pictures, token_ids, self._modalities)
        embedded: torch.Tensor = super().embed_input_ids(
            input_ids, embeddings, is_multimodal=is_multimodal
        )
        return embedded

    @property
    def _modalities(self) -> dict[int, str]:
        """By the tokens that stand for them."""
        names = ("audio", "image", "video")
        return {getattr(self.config, f"{name}_token_id"): name for name in names}

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Computes logits like the in-tree class, and counts steps with a NaN."""
        logits: torch.Tensor | None = super().compute_logits(hidden_states)
        if self._nan_watch is not None and logits is not None:
            self._nan_watch.look(logits)
        return logits

    def forward(self, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes like the in-tree class, and writes the tapped rows to the table's lines.

        A pipeline rank that is not the last returns what the next one takes.
        """
        result = super().forward(input_ids, *args, **kwargs)
        if self.table is not None and self.table.export is not None:
            is_last = isinstance(result, torch.Tensor)
            num_tokens = (result if is_last else result["hidden_states"]).shape[0]
            lines = self.table.lines(num_tokens)
            self.exported[lines] = self.tap.rows[:num_tokens]
        return result
