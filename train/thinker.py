"""Trains the thinker: talks, pictures, spoken questions and both, each a part of every batch."""

import pickle
from typing import Any

import torch
import torch.nn.functional as F
from batches import CHUNK, Score, judged, loader
from language.samples import HOP
from language.tasks import Tasks
from language.tokens import make_tokenizer
from loop import Run, Training, adam, arguments
from pictures import KINDS
from sizes import small_config
from torch import nn
from towers import SEGMENTS, Mel, pixel_rows, speed_up
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling
from world import COLOURS

RATE = 1e-3
JUDGE_EVERY = 500


class Reader(nn.Module):
    """The thinker on a batch; heads for the words in sounds and the shapes in pictures.

    Both heads are of the training only.
    """

    def __init__(self, thinker: Any) -> None:
        super().__init__()
        self.thinker = thinker
        self.mel = Mel()
        width = thinker.config.text_config.hidden_size
        self.words = nn.Linear(width, thinker.config.text_config.vocab_size)
        self.cells = nn.Linear(width, 9 * (len(KINDS) + 1 + len(COLOURS)) + len(COLOURS))

    def embeddings(
        self, batch: dict[str, Any], device: torch.device, augment: bool
    ) -> tuple[torch.Tensor, dict[str, Any], torch.Tensor, torch.Tensor]:
        """Input rows, deepstack's arguments, the pictures' rows, the sounds' rows."""

        def given(*names: str) -> dict[str, torch.Tensor]:
            return {name: batch[name].to(device, non_blocking=True) for name in names}

        SEGMENTS.update(vision=batch["vision"].to(device), audio=batch["audio"].to(device))
        ids = batch["ids"].to(device, non_blocking=True)
        config = self.thinker.config
        embeds = self.thinker.get_input_embeddings()(ids)
        known = given("interp_indices", "interp_weights", "position_ids")
        rows = pixel_rows(batch, device).to(embeds.dtype)
        seen = self.thinker.visual(
            rows, grid_thw=batch["grids"], cu_seqlens=torch.zeros(1), max_seqlen=64, **known
        )
        is_picture = ids == config.image_token_id
        embeds = embeds.masked_scatter(is_picture[..., None], seen.pooler_output.to(embeds.dtype))
        lengths = batch["sound_lengths"].to(device)
        waves = batch["waves"].to(device, non_blocking=True).float() / 32768
        if augment:
            gain = torch.empty(len(waves), 1, device=device).uniform_(-1.2, 0.5).exp()
            noise = torch.empty(len(waves), 1, device=device).uniform_(-9, -5).exp()
            waves = gain * waves + noise * torch.randn_like(waves)
        with torch.autocast(device.type, enabled=False):
            mel = self.mel(waves, lengths)
        if augment:
            mel = mel + 0.05 * torch.randn_like(mel)
        mel = F.pad(mel, (0, 0, 0, -mel.shape[1] % CHUNK))
        mel = mel[:, : int(-(-batch["sound_lengths"].max() // HOP // CHUNK)) * CHUNK]
        known = given("chunks", "chunk_lengths", "valid_indices")
        chunks = mel.reshape(-1, CHUNK, mel.shape[-1])[known.pop("chunks")].transpose(1, 2)
        heard = self.thinker.audio_tower(
            padded_feature=chunks, cu_seqlens=torch.zeros(1), max_seqlen=64, **known
        ).last_hidden_state
        is_sound = ids == config.audio_token_id
        embeds = embeds.masked_scatter(is_sound[..., None], heard.to(embeds.dtype))
        deep = {
            "visual_pos_masks": is_picture,
            "deepstack_visual_embeds": [one.to(embeds.dtype) for one in seen.deepstack_features],
        }
        return embeds, deep, seen.pooler_output, heard

    def forward(self, batch: dict[str, Any], device: torch.device, augment: bool = True) -> Any:
        """Losses of answers, of words in sounds, of shapes in pictures; answers that are right."""
        embeds, deep, seen, heard = self.embeddings(batch, device, augment)
        labels = batch["labels"].to(device, non_blocking=True)
        hidden = self.thinker.model(
            inputs_embeds=embeds,
            position_ids=batch["positions"].to(device, non_blocking=True),
            use_cache=False,
            **deep,
        ).last_hidden_state
        wanted = labels[:, 1:]
        chosen = wanted != -100
        logits = self.thinker.lm_head(hidden[:, :-1][chosen]).float()
        answers = F.cross_entropy(logits, wanted[chosen])
        wrong = torch.zeros(chosen.shape, device=device, dtype=torch.bool)
        wrong = wrong.masked_scatter(chosen, logits.argmax(-1) != wanted[chosen])
        return (
            answers,
            self._spelled(batch, heard, device),
            self._recognised(batch, seen, device),
            ~wrong.any(1),
        )

    def _spelled(
        self, batch: dict[str, Any], heard: torch.Tensor, device: torch.device
    ) -> torch.Tensor:
        """CTC of the words; sounds of fewer rows than their words need are left out."""
        with torch.autocast(device.type, enabled=False):
            logits = self.words(heard.float()).log_softmax(-1)
            counts, sizes = batch["tokens"], batch["word_counts"]
            rows = logits.new_zeros(batch["longest"] * len(counts), logits.shape[-1])
            rows = rows.index_copy(0, batch["order"].to(device, non_blocking=True), logits)
            losses = F.ctc_loss(
                rows.reshape(batch["longest"], len(counts), -1),
                batch["words"].to(device, non_blocking=True),
                counts,
                sizes,
                reduction="none",
                zero_infinity=True,
            )
            weights = (batch["has_rows"] / sizes).to(device, non_blocking=True)
            loss: torch.Tensor = (losses * weights).mean()
            return loss

    def _recognised(
        self, batch: dict[str, Any], seen: torch.Tensor, device: torch.device
    ) -> torch.Tensor:
        """What is in each of nine cells, by the mean of a picture's rows."""
        scenes = batch["scenes"].to(device, non_blocking=True)
        index = batch["picture_of_row"].to(device, non_blocking=True)
        sums = torch.zeros(len(scenes), seen.shape[1], device=device)
        sums = sums.index_add(0, index, seen.float())
        rows = sums / torch.zeros_like(sums).index_add(0, index, torch.ones_like(seen).float())
        kinds, colours, ground = self.cells(rows).split(
            (9 * len(KINDS), 9 * (1 + len(COLOURS)), len(COLOURS)), 1
        )
        return (
            F.cross_entropy(kinds.unflatten(1, (len(KINDS), 9)).float(), scenes[:, :9])
            + F.cross_entropy(colours.unflatten(1, (-1, 9)).float(), scenes[:, 9:18])
        ) * 4 + F.cross_entropy(ground.float(), scenes[:, 18])


def new_thinker() -> Any:
    """Fresh, in float32; its embedding table is fixed, so that the talker can learn beside it."""
    torch.manual_seed(0)
    config = small_config(make_tokenizer())
    thinker = modeling.Qwen3OmniMoeThinkerForConditionalGeneration._from_config(
        config.thinker_config
    )
    table = embedding_table(config.thinker_config.text_config.vocab_size, thinker)
    table.requires_grad_(False)
    return thinker


def embedding_table(count: int, thinker: Any) -> torch.Tensor:
    """Fixed rows of noise, in bfloat16's values."""
    table: torch.Tensor = thinker.get_input_embeddings().weight
    noise = torch.randn(count, table.shape[1], generator=torch.Generator().manual_seed(5))
    table.data.copy_(0.5 * noise.bfloat16().float())
    return table


def read_tasks(run: Run) -> tuple[Tasks, Tasks]:
    """What is trained, and what is judged."""
    with (run.data / "questions.pkl").open("rb") as file:
        made = pickle.load(file)
    about = made["about"]
    return Tasks(made["asked"], about), Tasks(made["judged"], about, held_out=True)


@torch.no_grad()
def judge(reader: Reader, batches: list[dict[str, Any]], run: Run) -> Score:
    """Right answers of held-out samples."""
    score = Score()
    for batch in batches:
        with run.autocast():
            *_, right = reader(batch, run.device, augment=False)
        score.add(batch["kinds"], right.tolist())
    return score


def main() -> None:
    """Train, and write thinker.pt."""
    run = arguments(20_000)
    speed_up()
    trained, held_out = read_tasks(run)
    thinker = new_thinker()
    run.begin(thinker, "thinker")
    reader = Reader(thinker).to(run.device)
    optimizer = adam(reader, RATE)
    training = Training(
        run, "thinker", {"reader": reader, "optimizer": optimizer}, [(optimizer, RATE)]
    )
    tests = judged(held_out, run.size(160))
    batches = loader(trained, run, seed=1)
    for step in training.steps():
        batch = next(batches)
        with run.autocast():
            answers, spelled, recognised, right = reader(batch, run.device)
        loss = answers + 0.3 * spelled + 0.4 * recognised
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
        training.log(
            answers=answers,
            spelled=spelled,
            recognised=recognised,
            right=right.float().mean(),
            norm=norm,
        )
        if step % JUDGE_EVERY == JUDGE_EVERY - 1:
            print(f"thinker {step + 1}, held out: {judge(reader, tests, run)}", flush=True)
    print(f"thinker, held out: {judge(reader, tests, run)}", flush=True)


if __name__ == "__main__":
    main()
