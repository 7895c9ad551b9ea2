"""MammothModa2's language model as a vLLM model: ids of images, and states of all tokens.

Math: Mammothmoda2Model.generate_t2i and encode_full_prompts of the published code.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import pad
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import maybe_prefix

from omnistage.stages.mammothmoda2.pair_backbone import PAIR, PairBackbone
from omnistage.stages.mammothmoda2.step_schema import ANY, FOLLOWER, SCHEMA, UNGUIDED
from omnistage.stages.vllm.models.nan_watch import NanWatch
from omnistage.stages.vllm.models.shards import joined_name, take_weight
from omnistage.stages.vllm.models.step_model import StepModel
from omnistage.stages.vllm.step.step_table import StepTable

BACKBONE, HEAD = "llm_model.model.language_model.", "llm_model.gen_head.weight"


class MammothModa2ImageIds(StepModel):
    """Draws an id of both halves of a pair, whose rows in a forward are one."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        device = torch.get_default_device()
        self.config = config = vllm_config.model_config.hf_config
        self.model: Any = PairBackbone(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model")
        )
        num_ids = config.vocab_size - config.image_vocab_start
        self.gen_head = ParallelLMHead(num_ids, config.hidden_size)
        self.logits_processor = LogitsProcessor(num_ids)
        self._nan_watch = NanWatch.of_engine(vllm_config, device)
        self.table = StepTable(vllm_config, device, SCHEMA)
        self.exported = self.table.make_export(config.hidden_size)
        self.positions_buffer = torch.zeros(2, self.table.max_tokens, dtype=torch.int64)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the tables of text and of images."""
        embedded: torch.Tensor = self.model.embed_input_ids(input_ids)
        return embedded

    def run_step(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        columns: torch.Tensor,
        lines: torch.Tensor,
    ) -> torch.Tensor:
        """Return [n, 2 * hidden + 1]: both halves' hidden states, and which id must follow."""
        num_tokens = input_ids.shape[0]
        own, unguided = self.positions_buffer[:, :num_tokens]
        own.copy_(positions)
        unguided.copy_(self.table.read(columns, UNGUIDED)[:, 0])
        hidden, mean = self.model(input_ids, own, unguided)
        self.exported[lines] = mean
        follower = self.table.read(columns, FOLLOWER)
        return torch.cat([hidden, follower.to(hidden.dtype)], dim=-1)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return logits [n, vocabulary], guided; -inf for what is no part of an image.

        Where an id must follow it alone is likely.
        """
        if self._nan_watch is not None:
            self._nan_watch.look(hidden_states)
        pairs = hidden_states[:, :-1].unflatten(-1, (PAIR, -1))
        logits = self.logits_processor(self.gen_head, pairs.flatten(0, 1))
        if logits is None:
            return None
        guided, unguided = logits.float().unflatten(0, (-1, PAIR)).unbind(1)
        config = self.config
        found = unguided + (guided - unguided) * config.guidance
        found[:, : config.first_image_id - config.image_vocab_start] = -torch.inf
        found = pad(found, (config.image_vocab_start, 0), value=-torch.inf)
        return only_followers(found, hidden_states[:, -1].int(), config.forced_ids)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take the text model and its head for images."""
        parameters = dict(self.named_parameters())
        loaded: set[str] = set()
        for name, weight in weights:
            part = None
            if name == HEAD:
                own = "gen_head.weight"
            elif name.startswith(BACKBONE):
                own, part = joined_name(f"model.{name.removeprefix(BACKBONE)}")
            else:
                continue
            take_weight(parameters[own], weight, part)
            loaded.add(own)
        return loaded


def only_followers(
    logits: torch.Tensor, followers: torch.Tensor, ids: Iterable[int]
) -> torch.Tensor:
    """Return logits [n, vocabulary] with -inf for all but the id that must follow, where one must.

    `followers` [n]: ANY, or 1 and the index of one of `ids`.
    """
    for number, one in enumerate(ids, ANY + 1):
        alone = torch.full_like(logits[0], -torch.inf)
        alone[one] = 0.0
        logits = torch.where((followers == number)[:, None], alone, logits)
    return logits
