"""Trains the thinker: talks, pictures, spoken questions and both, each a part of every batch."""

import pickle
from typing import Any

import torch
import torch.nn.functional as F
from batches import CHUNK, MIX, loader
from loop import Training, adam, arguments
from samples import HOP
from sizes import small_config
from tokens import make_tokenizer
from torch import nn
from towers import SEGMENTS, Mel, pixel_rows, speed_up
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling


class Reader(nn.Module):
    """The thinker on a batch; a head for the words that a sound has, in training only."""

    def __init__(self, thinker: Any) -> None:
        super().__init__()
        self.thinker = thinker
        self.mel = Mel()
        config = thinker.config
        self.words = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size)

    def embeddings(
        self, batch: dict[str, Any], device: torch.device, augment: bool
    ) -> tuple[torch.Tensor, dict[str, Any], torch.Tensor]:
        """Input rows, deepstack's arguments, the sounds' rows."""

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
        return embeds, deep, heard

    def forward(self, batch: dict[str, Any], device: torch.device, augment: bool = True) -> Any:
        """Losses: of the answers, and of the words in sounds."""
        embeds, deep, heard = self.embeddings(batch, device, augment)
        labels = batch["labels"].to(device, non_blocking=True)
        hidden = self.thinker.model(
            inputs_embeds=embeds,
            position_ids=batch["positions"].to(device),
            use_cache=False,
            **deep,
        ).last_hidden_state
        wanted = labels[:, 1:]
        chosen = wanted != -100
        logits = self.thinker.lm_head(hidden[:, :-1][chosen])
        answers = F.cross_entropy(logits.float(), wanted[chosen])
        return answers, self._spelled(batch, heard, device), (logits, wanted[chosen], chosen)

    def _spelled(
        self, batch: dict[str, Any], heard: torch.Tensor, device: torch.device
    ) -> torch.Tensor:
        targets = batch["words"]
        logits = self.words(heard).float().log_softmax(-1)
        counts = batch["tokens"]
        flat_rows = logits.new_zeros(batch["longest"] * len(counts), logits.shape[-1])
        flat_rows = flat_rows.index_copy(0, batch["order"].to(device), logits)
        padded = flat_rows.reshape(batch["longest"], len(counts), -1)
        flat = torch.cat([torch.as_tensor(one) for one in targets]).to(device)
        sizes = torch.tensor([len(one) for one in targets])
        return F.ctc_loss(padded, flat, counts, sizes, blank=0, zero_infinity=True)


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


def main() -> None:
    """Train, and write thinker.pt."""
    run = arguments(12_000)
    speed_up()
    with (run.data / "talks.pkl").open("rb") as file:
        talks = pickle.load(file)
    reader = Reader(new_thinker()).to(run.device)
    optimizer = adam(reader, 1e-3)
    training = Training(
        run, "thinker", {"reader": reader, "optimizer": optimizer}, [(optimizer, 1e-3)]
    )
    batches = loader(talks, run, seed=training.step + 1)
    for _ in training.steps():
        batch = next(batches)
        with torch.autocast(run.device.type, torch.bfloat16):
            answers, spelled, (logits, wanted, chosen) = reader(batch, run.device)
        loss = answers + 0.3 * spelled
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        if not bool(norm.isfinite()):  # now and then: README.md
            print(f"step {training.step} has no finite gradient and is left out", flush=True)
            continue
        optimizer.step()
        right = torch.zeros(chosen.shape, device=chosen.device, dtype=torch.bool)
        right[chosen] = logits.argmax(-1) != wanted
        wrong = right.any(1).float()
        shares, start = {}, 0
        if len(wrong) < sum(run.size(count) for count in MIX.values()):
            continue
        for kind, count in MIX.items():
            size = run.size(count)
            shares[kind] = 1 - wrong[start : start + size].mean()
            start += size
        training.log(answers=answers, spelled=spelled, **shares)


if __name__ == "__main__":
    main()
