"""Trains the talker and its code predictor: codes of a voice after a prompt as served."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from language.samples import Writer
from language.texts import talk
from language.tokens import make_tokenizer
from loop import Training, adam, arguments
from sizes import CODEBOOK_SIZE, NUM_CODEBOOKS, WIDTH, small_config
from thinker import embedding_table
from torch import nn
from towers import speed_up
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling
from utterances import Library, Said
from voices import SPEAKERS

from omnistage.stages.qwen3_omni.talker_prompt import (
    NO_TEXT,
    SpeechIds,
    TalkerPrompt,
    talker_prompt,
)

BATCH = 224
RATE = 1.8e-3
JUDGE_EVERY = 500
ALIKE = 4  # batches that are made together, each of rows of like length
PREDICTED = 4096  # frames of a batch whose other codes are learned
PLACE_LAYER = 3  # from which the place in the text is told in training
WITH_MEDIA = 0.25  # of the prompts, once a thinker has been trained: media.py
# The most of an utterance's codes that are read wrong: what was said before is no good guide to
# the next word then, and one odd draw no catastrophe.
REPLACED = 0.3


# What a batch is padded with.
EMPTY = {
    "text": NO_TEXT,
    "special": -1,
    "codes": -1,
    "labels": -100,
    "residual": -1,
    "spoken": -1,
    "is_media": False,
    "positions": 0,
}


class Batches(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """Padded rows: what a talker's prompt and decode steps read, and what they are to say."""

    def __init__(
        self, out: Path, media: list[dict[str, Any]], ids: SpeechIds, size: int, seed: int
    ) -> None:
        self._library, self._media, self._ids = Library(out), media, ids
        self._size, self._seed = size, seed
        self._writer = Writer()

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = torch.utils.data.get_worker_info()
        pick = random.Random(self._seed * 100 + (worker.id if worker else 0))
        while True:
            rows = self._drawn(ALIKE * self._size, pick)
            rows.sort(key=lambda one: len(one["text"]))
            starts = list(range(0, len(rows), self._size))
            pick.shuffle(starts)
            for start in starts:
                yield self._batch(rows[start : start + self._size])

    def held_out(self, pick: random.Random) -> dict[str, torch.Tensor]:
        """A batch of what is never trained."""
        return self._batch(self._drawn(self._size, pick, held_out=True))

    def _drawn(
        self, count: int, pick: random.Random, held_out: bool = False
    ) -> list[dict[str, Any]]:
        self._library.look()
        return [self._rows(self._library.draw(pick, held_out), pick) for _ in range(count)]

    def _prompt(self, pick: random.Random, speaker: str) -> tuple[TalkerPrompt, torch.Tensor]:
        """Of an empty user turn, as for a given text, of a question, or of one with media."""
        nothing = torch.zeros(0, WIDTH, dtype=torch.bfloat16)
        if self._media and pick.random() < WITH_MEDIA:
            one = pick.choice(self._media)
            ids = one["ids"].numpy()
            grids = self._writer.grids(ids, one["pictures"])
            prompt = talker_prompt(self._ids, ids, grids, speaker)
            # Media of an earlier turn's system text do not exist: all rows are the user's.
            return prompt, one["rows"]
        if pick.random() < 0.5:
            turns: tuple[str, ...] = ("",)
        else:
            turns = talk(pick).turns[:-1]
        text = "".join(
            f"<|im_start|>{('user', 'assistant')[index % 2]}\n{turn}<|im_end|>\n"
            for index, turn in enumerate(turns)
        )
        ids = self._writer.ids(f"{text}<|im_start|>assistant\n")
        return talker_prompt(self._ids, ids, [], speaker), nothing

    def _batch(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(one["text"]) for one in rows)
        made = {}
        for name, empty in EMPTY.items():
            first = rows[0][name]
            array = np.full((len(rows), longest, *first.shape[1:]), empty, first.dtype)
            for row, one in enumerate(rows):
                array[row, : len(one[name])] = one[name]
            made[name] = torch.from_numpy(array)
        made["text"] = made["text"].masked_fill(made["text"] == NO_TEXT, self._ids.tts_pad)
        made["media"] = torch.cat([one["media"] for one in rows])
        return made

    def _rows(self, one: Said, pick: random.Random) -> dict[str, Any]:
        ids = self._ids
        prompt, media = self._prompt(pick, SPEAKERS[one.speaker])
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
        # Which token is said in a frame, and the next one.
        at = np.searchsorted(one.ends, np.arange(count) + 0.5).clip(max=len(one.tokens) - 1)
        following = np.asarray([*one.tokens, ids.tts_eos], np.int64)
        said = np.full((total, 2), -1, np.int64)
        said[start : start + count] = np.stack([following[at], following[at + 1]], 1)
        is_media = np.zeros(total, np.bool_)
        is_media[prompt.hidden_positions] = True
        after = np.arange(len(prompt), total) + prompt.position_delta
        positions = np.concatenate([prompt.positions, np.tile(after, (3, 1))], 1)
        return {
            "text": text,
            "special": special,
            "codes": codes,
            "labels": labels,
            "residual": residual,
            "spoken": said,
            "is_media": is_media,
            "positions": positions.T,
            "media": media,
        }


class Speaker(nn.Module):
    """The talker on a batch."""

    table: torch.Tensor

    def __init__(self, talker: Any, table: torch.Tensor) -> None:
        super().__init__()
        self.talker = talker
        self.register_buffer("table", table)
        width = talker.config.text_config.hidden_size
        self.place = nn.Linear(width, 2 * len(table))
        self._middle: list[torch.Tensor] = []
        talker.model.layers[PLACE_LAYER].register_forward_hook(
            lambda *given: self._middle.append(
                given[2][0] if isinstance(given[2], tuple) else given[2]
            )
        )

    def forward(
        self, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Losses of first codes, of the others, of the place in the text; right first codes."""
        talker, predictor = self.talker, self.talker.code_predictor
        first_table = talker.get_input_embeddings().weight
        others = torch.cat([one.weight for one in predictor.get_input_embeddings()])
        text = talker.text_projection(F.embedding(batch["text"], self.table))
        is_media = batch["is_media"]
        media = talker.hidden_projection(batch["media"].float())
        text = text.masked_scatter(is_media[..., None], media.to(text.dtype))
        special = batch["special"]
        text = text + F.embedding(special.clamp(min=0), first_table) * (special >= 0)[..., None]
        codes = batch["codes"]
        is_frame = codes[..., 0] >= 0
        frames = codes[is_frame]
        if self.training:
            share = REPLACED * torch.rand(len(codes), 1, device=codes.device) ** 3
            share = share.expand(is_frame.shape)[is_frame][:, None]
            noise = torch.randint_like(frames, CODEBOOK_SIZE)
            odd = torch.rand(frames.shape, device=frames.device) < share
            frames = torch.where(odd, noise, frames)
        heard = self._of_frames(frames, first_table, others)
        rows = text.masked_scatter(
            is_frame[..., None], text[is_frame] + heard.sum(1).to(text.dtype)
        )
        hidden = talker.model(
            inputs_embeds=rows, position_ids=batch["positions"].permute(2, 0, 1), use_cache=False
        ).last_hidden_state
        middle = self._middle.pop()
        spoken = batch["spoken"]
        is_known = spoken[..., 0] >= 0
        places = self.place(middle[is_known]).unflatten(1, (2, -1)).float()
        place = F.cross_entropy(places.flatten(0, 1), spoken[is_known].flatten())
        labels = batch["labels"]
        logits = talker.codec_head(hidden[labels >= 0]).float()
        first = F.cross_entropy(logits, labels[labels >= 0])
        residual = batch["residual"]
        speaks = residual[..., 0] >= 0
        wanted, before = residual[speaks], hidden[speaks]
        if self.training and len(wanted) > PREDICTED:
            chosen = torch.randperm(len(wanted), device=wanted.device)[:PREDICTED]
            wanted, before = wanted[chosen], before[chosen]
        inputs = self._of_frames(wanted[:, :-1], first_table, others)
        inputs = torch.cat([before[:, None].to(inputs.dtype), inputs], 1)
        made = predictor.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        heads = torch.stack([head.weight for head in predictor.lm_head])
        others_logits = torch.einsum("nkh,kvh->nkv", made[:, 1:], heads)
        rest = F.cross_entropy(others_logits.flatten(0, 1).float(), wanted[:, 1:].flatten())
        return first, rest, place, (logits.argmax(-1) == labels[labels >= 0]).float().mean()

    def _of_frames(
        self, frames: torch.Tensor, first: torch.Tensor, others: torch.Tensor
    ) -> torch.Tensor:
        """Embeddings [n, k, hidden] of the first k codes of frames [n, k]."""
        steps = torch.arange(frames.shape[1] - 1, device=frames.device)
        parts = [F.embedding(frames[:, :1], first)]
        parts.append(F.embedding(frames[:, 1:] + steps * CODEBOOK_SIZE, others))
        return torch.cat(parts, 1)


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
    run.begin(talker, "talker")
    speaker = Speaker(talker, table).to(run.device)
    run.share(speaker)
    optimizer = adam(speaker, RATE)
    training = Training(
        run, "talker", {"speaker": speaker, "optimizer": optimizer}, [(optimizer, RATE)]
    )
    known = run.out / "media.pt"
    media = torch.load(known, weights_only=True) if known.exists() else []
    ids = SpeechIds.of(config)
    # What is seen after a stop is not what was seen before it.
    seed = 1 + run.more + 10 * run.rank + 1000 * training.resumed_at()
    data = Batches(run.out, media, ids, run.size(BATCH), seed)
    tests = Batches(run.out, media, ids, run.size(256), 77).held_out(random.Random(77))
    tests = {name: one.to(run.device) for name, one in tests.items()}
    workers = run.workers if run.device.type == "cuda" else 0
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers))
    for _ in training.steps():
        batch = {name: one.to(run.device, non_blocking=True) for name, one in next(batches).items()}
        speaker.train()
        with run.autocast():
            first, rest, place, right = speaker(batch)
        optimizer.zero_grad(set_to_none=True)
        (first + 0.3 * rest + place).backward()
        run.average(speaker)
        nn.utils.clip_grad_norm_(speaker.parameters(), 1.0)
        optimizer.step()
        training.log(first=first, rest=rest, place=place, right=right)
        if training.step % JUDGE_EVERY == JUDGE_EVERY - 1 and run.rank == 0:
            speaker.eval()
            with torch.no_grad(), run.autocast():
                losses = [round(float(one), 3) for one in speaker(tests)]
            print(f"talker {training.step + 1}, held out: {losses}", flush=True)


if __name__ == "__main__":
    main()
