"""A talker of codec frames that speaks token ids: their embeddings are projected once, at load.

A token's input is

    text:    the projected embedding of a text's token id
    codec:   + embedding of an id of the talker's own vocabulary, in the prompt
    hidden:  + the projection of a row from upstream, if a family has such rows

and what every talker of codec frames adds (frame_talker.py). The weights are `talker.*` of a
whole checkpoint.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from omnistage.stages.speech.columns import CODEC, TEXT
from omnistage.stages.speech.frame_talker import FrameTalker
from omnistage.stages.vllm.models.shards import take_weight
from omnistage.stages.vllm.step import step

PROJECTION_CHUNK = 8192


class TextTalker(FrameTalker):
    """A talker of texts: its inputs and its weights."""

    text_embedding: ClassVar[str]  # the name of the table in the checkpoint
    text_projection: nn.Module
    text_table: nn.Parameter

    def take_text(self, vocab_size: int, projection: nn.Module) -> None:
        """Make the table of a text's vocabulary; its values come with the weights."""
        self.text_projection = projection
        shape = vocab_size, self.last_hidden.shape[-1]
        table = torch.zeros(shape, dtype=self.last_hidden.dtype)
        self.text_table = nn.Parameter(table, requires_grad=False)

    def header_inputs(self, columns: torch.Tensor) -> torch.Tensor:
        """Text or a hidden row, and a codec id."""
        text, codec = self.table.read(columns, TEXT), self.table.read(columns, CODEC)
        inputs = torch.where(text >= 0, self.text_table[text[:, 0].clamp_min(0)], 0)
        if self.table.schema.rows is not None:
            inputs = inputs + self.hidden_rows[columns[:, step.HIDDEN]]
        embedded = self.model.embed_input_ids(codec[:, 0].clamp_min(0))
        return torch.where(codec >= 0, inputs + embedded, inputs)

    def project_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns them as they come."""
        return hidden

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take `talker.*` and the text's embedding table from a whole checkpoint."""
        text_embeddings: list[torch.Tensor] = []
        loaded: set[str] = {"text_table"}
        predictor: list[tuple[str, torch.Tensor]] = []
        parameters = dict(self.named_parameters())

        def backbone() -> Iterable[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if name == self.text_embedding:
                    text_embeddings.append(weight)
                elif name.startswith("talker.code_predictor."):
                    predictor.append((name.removeprefix("talker.code_predictor."), weight))
                elif name.startswith("talker.model."):
                    name = name.removeprefix("talker.model.")
                    yield name.replace("codec_embedding.", "embed_tokens."), weight
                elif name.startswith("talker."):
                    name = name.removeprefix("talker.")
                    take_weight(parameters[name], weight)
                    loaded.add(name)

        loaded |= {f"model.{name}" for name in self.model.load_weights(backbone())}
        loaded |= {f"code_predictor.{name}" for name in self.code_predictor.load_weights(predictor)}
        if not text_embeddings:
            raise ValueError(f"the checkpoint has no {self.text_embedding}")
        self._project_table(text_embeddings[0])
        return loaded

    @torch.no_grad()
    def _project_table(self, embeddings: torch.Tensor) -> None:
        table = self.text_table
        for start in range(0, len(embeddings), PROJECTION_CHUNK):
            part = embeddings[start : start + PROJECTION_CHUNK].to(table.device, table.dtype)
            table[start : start + len(part)] = self.text_projection(part)
