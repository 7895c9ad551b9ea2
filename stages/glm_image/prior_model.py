"""GLM-Image's autoregressive half as a vLLM model: image ids from a prompt's ids.

Math: the language model of transformers' GlmImageForConditionalGeneration. The layers are vLLM's
GLM-4 with M-RoPE in place of their own. Positions are those of grids, which vLLM does not count:
they come in the step table.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers import GlmImageConfig
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.glm4 import Glm4DecoderLayer
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import maybe_prefix

from omnistage.stages.glm_image.step_schema import POSITION, PRIOR_SCHEMA
from omnistage.stages.vllm.models.shards import take_weight
from omnistage.stages.vllm.models.step_model import StepModel
from omnistage.stages.vllm.step.step_table import StepTable

SECTION = "mrope_section"
DEFAULT_SECTION = (8, 12, 12)  # of transformers' class
LANGUAGE_MODEL, HEAD = "model.language_model.", "lm_head."


def prior_config(config: Any) -> Any:
    """`hf_overrides`: the language model's own configuration with our architecture.

    vLLM also calls this with an empty configuration, to ask for the model type. The sections of
    M-RoPE get another name, or vLLM would count positions itself.
    """
    if not isinstance(config, GlmImageConfig):
        return config
    text = config.text_config
    text.architectures = ["OmnistageGlmImagePrior"]
    rope = dict(text.rope_parameters or {})
    text.position_sections = list(rope.pop(SECTION, DEFAULT_SECTION))
    text.rope_parameters = {"partial_rotary_factor": 1.0, **rope}
    text.num_image_ids = config.vq_config.num_embeddings
    return text


class PriorLayer(Glm4DecoderLayer):
    """A layer of GLM-4 that rotates by three positions, halves against each other."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        super().__init__(vllm_config, prefix, config)
        config = config or vllm_config.model_config.hf_config
        self.self_attn.rotary_emb = get_rope(
            self.self_attn.head_dim,
            max_position=config.max_position_embeddings,
            rope_parameters={**config.rope_parameters, SECTION: config.position_sections},
        )


@support_torch_compile(dynamic_arg_dims={"positions": -1, "inputs_embeds": 0})
class PriorBackbone(LlamaModel):
    """vLLM's Llama of such layers, compiled for embeddings and positions of three axes."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=PriorLayer)

    def forward(self, positions: torch.Tensor, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, hidden] from positions [3, n] and embeddings [n, hidden]."""
        return super().forward(None, positions, None, inputs_embeds)


class GlmImagePrior(StepModel):
    """Makes ids of images and nothing else."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        self.model: Any = PriorBackbone(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model")
        )
        self.lm_head = ParallelLMHead(
            config.vision_vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head")
        )
        self.logits_processor = LogitsProcessor(config.vision_vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.table = StepTable(vllm_config, torch.get_default_device(), PRIOR_SCHEMA)
        dtype, num_tokens = vllm_config.model_config.dtype, self.table.max_tokens
        # The compiled model reads buffers that never move. One column more than is ever used: a
        # slice never is contiguous, so its strides are always the same.
        self.inputs_buffer = torch.zeros(num_tokens, config.hidden_size, dtype=dtype)
        self.positions_buffer = torch.zeros(3, num_tokens + 1, dtype=torch.int64)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding table, which has both the text's ids and the image's."""
        embedded: torch.Tensor = self.model.embed_input_ids(input_ids)
        return embedded

    def run_step(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states [n, hidden] of the runner's n tokens."""
        num_tokens = input_ids.shape[0]
        self.inputs_buffer[:num_tokens] = self.embed_input_ids(input_ids)
        self.positions_buffer[:, :num_tokens] = self.table.read(columns, POSITION).T
        hidden: torch.Tensor = self.model(
            self.positions_buffer[:, :num_tokens], self.inputs_buffer[:num_tokens]
        )
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits [n, vocabulary]: -inf but for ids of images.

        A request knows how many ids it makes, so neither the marks of a beginning nor of an end are
        ever sampled: an early end would shift the image. The width is that of the vocabulary, which
        vLLM's sampler counts with.
        """
        logits = self.logits_processor(self.lm_head, hidden_states)
        return None if logits is None else only_images(logits, self.config)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """The language model and its head; not the vision tower and its quantizer."""
        loaded: set[str] = set()
        parameters = dict(self.named_parameters())

        def backbone() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if name.startswith(LANGUAGE_MODEL):
                    yield name.removeprefix(LANGUAGE_MODEL), weight
                elif name.startswith(HEAD):
                    take_weight(parameters[name], weight)
                    loaded.add(name)

        loaded |= {f"model.{name}" for name in self.model.load_weights(backbone())}
        return loaded


def only_images(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """Logits [n, head] as [n, vocabulary], with -inf for all that are no ids of images."""
    allowed = logits.new_full((logits.shape[0], config.vocab_size), -torch.inf)
    allowed[:, : config.num_image_ids] = logits[:, : config.num_image_ids]
    return allowed
