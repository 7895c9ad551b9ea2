"""Prompt embeddings that a stage upstream computes, as arguments of a pipeline's call."""

import asyncio
from pathlib import Path

import torch
from transformers import AutoConfig

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stages.device.dtypes import dtype_of
from omnistage.stages.messages.edge import Edge, Rows
from omnistage.stages.messages.embeds import EmbedsToCome
from omnistage.stages.worker.ledger import Held, Ledger
from omnistage.stages.worker.stage import StagePorts
from omnistage.stages.worker.watch import Watch, overdue

BLANK_LENGTH = 8


class PromptEmbeds:
    """One request's: its texts' rows are put where they belong, however they come."""

    def __init__(self, to_come: EmbedsToCome) -> None:
        self._first = to_come.first
        self._embeds: dict[str, torch.Tensor] = {}
        self._masks = {name: mask_of(rows) for name, rows in to_come.lengths.items()}
        self._missing = {name: mask.bool() for name, mask in self._masks.items()}

    @property
    def is_complete(self) -> bool:
        """Returns whether every row of every text is there."""
        return not any(missing.any() for missing in self._missing.values())

    def add(self, chunk: Chunk[Edge]) -> None:
        """Take rows of one text; a chunk that only ends it has none."""
        if not isinstance(chunk.message, Rows) or "hidden" not in chunk.tensors:
            return
        sent = chunk.tensors["hidden"]
        hidden = torch.frombuffer(sent.data, dtype=dtype_of(sent.dtype)).view(sent.shape)
        name, row = chunk.message.text, chunk.message.row
        places = torch.from_numpy(chunk.tensors["positions"].numpy()).long() - self._first
        if name not in self._embeds:
            self._embeds[name] = hidden.new_zeros(*self._masks[name].shape, hidden.shape[1])
        self._embeds[name][row, places] = hidden
        self._missing[name][row, places] = False

    def arguments(self, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The embeddings [texts, rows, size] and their masks, padded with zeros."""
        masks = {f"{name}_mask": mask.to(device) for name, mask in self._masks.items()}
        return {name: rows.to(device, dtype) for name, rows in self._embeds.items()} | masks


class Upstream:
    """The requests whose embeddings come from the stage upstream."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._ledger = Ledger(Path(ports.ledger)) if ports.ledger else None
        self._waiting: dict[str, tuple[PromptEmbeds, Watch, asyncio.Event]] = {}

    async def all_of(self, request_id: str, to_come: EmbedsToCome) -> PromptEmbeds:
        """All that was announced; RequestError when it does not come in time."""
        embeds = PromptEmbeds(to_come)
        watch, has_come = Watch(self._ports.deadlines), asyncio.Event()
        self._waiting[request_id] = embeds, watch, has_come
        self._count()
        try:
            while not embeds.is_complete:
                has_come.clear()
                async with asyncio.timeout_at(watch.due_at):
                    await has_come.wait()
        except TimeoutError:
            raise overdue(self._ports.source, self._ports.name) from None
        finally:
            del self._waiting[request_id]
            self._count()
        return embeds

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """Rows of one text; its request's task may not have begun yet."""
        if chunk.request_id in self._waiting:
            self._add(receiver, chunk)
        else:
            asyncio.get_running_loop().call_soon(self._add, receiver, chunk)

    def _add(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        receiver.grant(chunk.request_id)
        waiting = self._waiting.get(chunk.request_id)
        if waiting is not None:
            embeds, watch, has_come = waiting
            embeds.add(chunk)
            watch.restart()
            has_come.set()

    def _count(self) -> None:
        if self._ledger is not None:
            self._ledger.write(Held.LATE_INPUTS, len(self._waiting))

    def close(self) -> None:
        """Let the ledger go."""
        if self._ledger is not None:
            self._ledger.close()


def mask_of(lengths: list[int]) -> torch.Tensor:
    """int64 [texts, longest]: 1 where a text has a row."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def blank_embeds(model: str, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A prompt of no meaning, for a pipeline without the text encoder that its folder has."""
    config = AutoConfig.from_pretrained(model, subfolder="text_encoder")
    size = config.get_text_config().hidden_size
    embeds = torch.zeros(1, BLANK_LENGTH, size, device=device, dtype=dtype)
    mask = mask_of([BLANK_LENGTH]).to(device)
    return {"prompt_embeds": embeds, "prompt_embeds_mask": mask}
