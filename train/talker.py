"""Trains the talker and its code predictor: codes of a voice after a prompt as served."""

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from loop import Run, Training, adam, arguments
from samples import Writer
from sizes import CODEBOOK_SIZE, NUM_CODEBOOKS, small_config
from texts import question
from thinker import embedding_table
from tokens import make_tokenizer
from torch import nn
from towers import speed_up
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling
from voices import SPEAKERS

from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt

BATCH = 144
REPLACED = 0.02  # of the codes that are read, so that one odd draw is no catastrophe


@dataclass(frozen=True)
class Said:
    """An utterance: the text's tokens, the voice, codes int64 [t, codebooks]."""

    tokens: list[int]
    speaker: str
    codes: np.ndarray[Any, Any]


class Batches(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """Padded rows: what a talker's prompt and decode steps read, and what they are to say."""

    def __init__(self, said: list[Said], ids: SpeechIds, size: int, seed: int) -> None:
        self._said, self._ids, self._size, self._seed = said, ids, size, seed
        self._writer = Writer()

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = torch.utils.data.get_worker_info()
        pick = random.Random(self._seed * 100 + (worker.id if worker else 0))
        while True:
            yield self._batch(pick.choices(self._said, k=self._size), pick)

    def _prompt(self, pick: random.Random) -> list[int]:
        """An empty user turn, as for a given text, or a question."""
        asked = "" if pick.random() < 0.5 else question(pick)[1]
        system = ""
        if pick.random() < 0.1:
            system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        text = f"{system}<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        return self._writer.ids(text)

    def _batch(self, said: list[Said], pick: random.Random) -> dict[str, torch.Tensor]:
        rows = [self._rows(one, pick) for one in said]
        longest = max(len(text) for text, *_ in rows)
        made = {
            "text": np.full((len(rows), longest), self._ids.tts_pad, np.int64),
            "special": np.full((len(rows), longest), -1, np.int64),
            "codes": np.full((len(rows), longest, NUM_CODEBOOKS), -1, np.int64),
            "labels": np.full((len(rows), longest), -100, np.int64),
            "residual": np.full((len(rows), longest, NUM_CODEBOOKS), -1, np.int64),
        }
        for row, parts in enumerate(rows):
            for name, part in zip(made, parts, strict=True):
                made[name][row, : len(part)] = part
        return {name: torch.from_numpy(array) for name, array in made.items()}

    def _rows(self, one: Said, pick: random.Random) -> tuple[np.ndarray[Any, Any], ...]:
        ids = self._ids
        prompt = talker_prompt(ids, self._prompt(pick), [], one.speaker)
        start, count = len(prompt) - 1, len(one.codes)
        total = len(prompt) + count
        text = np.full(total, ids.tts_pad, np.int64)
        text[:start] = prompt.text[:-1]
        spoken = [*one.tokens, ids.tts_eos]
        text[start : start + len(spoken)] = spoken[: total - start]
        special = np.full(total, -1, np.int64)
        special[: len(prompt)] = prompt.codec
        codes = np.full((total, NUM_CODEBOOKS), -1, np.int64)
        codes[len(prompt) :] = one.codes
        labels = np.full(total, -100, np.int64)
        labels[start : start + count] = one.codes[:, 0]
        labels[start + count] = ids.codec_eos
        residual = np.full((total, NUM_CODEBOOKS), -1, np.int64)
        residual[start : start + count] = one.codes
        return text, special, codes, labels, residual


class Speaker(nn.Module):
    """The talker on a batch."""

    table: torch.Tensor

    def __init__(self, talker: Any, table: torch.Tensor) -> None:
        super().__init__()
        self.talker = talker
        self.register_buffer("table", table)

    def forward(
        self, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Losses of the first codes and of the others, and the share of right ends."""
        talker, predictor = self.talker, self.talker.code_predictor
        first_table = talker.get_input_embeddings().weight
        others = torch.cat([one.weight for one in predictor.get_input_embeddings()])
        text = talker.text_projection(F.embedding(batch["text"], self.table))
        special = batch["special"]
        text = text + F.embedding(special.clamp(min=0), first_table) * (special >= 0)[..., None]
        codes = batch["codes"]
        is_frame = codes[..., 0] >= 0
        frames = codes[is_frame]
        noise = torch.randint_like(frames, CODEBOOK_SIZE)
        frames = torch.where(
            torch.rand(frames.shape, device=frames.device) < REPLACED, noise, frames
        )
        heard = self._of_frames(frames, first_table, others)
        rows = text.masked_scatter(
            is_frame[..., None], text[is_frame] + heard.sum(1).to(text.dtype)
        )
        hidden = talker.model(inputs_embeds=rows, use_cache=False).last_hidden_state
        labels = batch["labels"]
        logits = talker.codec_head(hidden[labels >= 0]).float()
        logits = torch.cat([logits[:, : CODEBOOK_SIZE + 64]], 1)
        first = F.cross_entropy(logits, labels[labels >= 0])
        residual = batch["residual"]
        speaks = residual[..., 0] >= 0
        wanted = residual[speaks]
        inputs = self._of_frames(wanted[:, :-1], first_table, others)
        inputs = torch.cat([hidden[speaks][:, None].to(inputs.dtype), inputs], 1)
        made = predictor.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        heads = torch.stack([head.weight for head in predictor.lm_head])
        others_logits = torch.einsum("nkh,kvh->nkv", made[:, 1:], heads)
        rest = F.cross_entropy(others_logits.flatten(0, 1).float(), wanted[:, 1:].flatten())
        return first, rest, (logits.argmax(-1) == labels[labels >= 0]).float().mean()

    def _of_frames(
        self, frames: torch.Tensor, first: torch.Tensor, others: torch.Tensor
    ) -> torch.Tensor:
        """Embeddings [n, k, hidden] of the first k codes of frames [n, k]."""
        steps = torch.arange(frames.shape[1] - 1, device=frames.device)
        parts = [F.embedding(frames[:, :1], first)]
        parts.append(F.embedding(frames[:, 1:] + steps * CODEBOOK_SIZE, others))
        return torch.cat(parts, 1)


def read_said(run: Run, writer: Writer) -> list[Said]:
    """All utterances whose text is not longer than their sound."""
    with (run.data / "voices.pkl").open("rb") as file:
        voices = pickle.load(file)
    codes = torch.load(run.out / "codes.pt", weights_only=True)["codes"]
    said = []
    for (text, speaker, _), rows in zip(voices, codes, strict=True):
        tokens = writer.ids(text)
        if len(tokens) + 1 < len(rows):
            said.append(Said(tokens, SPEAKERS[speaker], rows.numpy().astype(np.int64)))
    return said


def main() -> None:
    """Train, and write talker.pt."""
    run = arguments(10_000)
    speed_up()
    tokenizer = make_tokenizer()
    config = small_config(tokenizer)
    thinker = modeling.Qwen3OmniMoeThinkerForConditionalGeneration._from_config(
        config.thinker_config
    )
    table = embedding_table(config.thinker_config.text_config.vocab_size, thinker).detach().clone()
    torch.manual_seed(1)
    talker = modeling.Qwen3OmniMoeTalkerForConditionalGeneration._from_config(config.talker_config)
    speaker = Speaker(talker, table).to(run.device)
    optimizer = adam(speaker, 1.5e-3)
    training = Training(
        run, "talker", {"speaker": speaker, "optimizer": optimizer}, [(optimizer, 1.5e-3)]
    )
    writer = Writer()
    data = Batches(read_said(run, writer), SpeechIds.of(config), run.size(BATCH), 1)
    workers = 3 if run.device.type == "cuda" else 0
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers))
    for _ in training.steps():
        batch = {name: one.to(run.device, non_blocking=True) for name, one in next(batches).items()}
        with torch.autocast(run.device.type, torch.bfloat16):
            first, rest, right = speaker(batch)
        optimizer.zero_grad(set_to_none=True)
        (first + rest).backward()
        nn.utils.clip_grad_norm_(speaker.parameters(), 1.0)
        optimizer.step()
        training.log(first=first, rest=rest, right=right)


if __name__ == "__main__":
    main()
