"""Lets a recogniser hear a trained talker and code2wav on held-out texts, without a server.

What is heard is saved batch by batch: the same command goes on where it was stopped.
"""

import argparse
import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ear import Ear, errors, hearable, words
from language.samples import Writer
from language.texts import to_speak
from sizes import CODEBOOK_SIZE, NUM_CODEBOOKS
from towers import speed_up
from transformers import DynamicCache, Qwen3OmniMoeForConditionalGeneration
from utterances import FRAME_16K
from voices import SPEAKERS, speak, trimmed

from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt

MOST_FRAMES = 200
VOICE_RATE_HZ = 24_000
AT_ONCE = 100  # sentences of about the same length
PENALTY = 1.05  # of first codes that a voice has had, as served
NONSENSE = 0.5  # of a sentence's words are wrong, at least


class Voice:
    """Trained parts that speak texts, many at a time, greedily or as served."""

    def __init__(self, folder: Path, device: torch.device, penalty: float) -> None:
        model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32
        )
        self._config, self._writer, self._device = model.config, Writer(), device
        self._ids, self._penalty = SpeechIds.of(model.config), penalty
        self._table = model.thinker.get_input_embeddings().weight.to(device)
        self._talker: Any = model.talker.to(device).eval()
        self._wav: Any = model.code2wav.to(device).eval()

    @torch.no_grad()
    def codes(self, jobs: list[tuple[str, str]], temperature: float) -> list[torch.Tensor]:
        """Frames int64 [codebooks, t] of pairs of text and voice; those without an end are cut."""
        talker, ids = self._talker, self._ids
        predictor = talker.code_predictor
        first = talker.get_input_embeddings().weight
        others = [one.weight for one in predictor.get_input_embeddings()]
        texts = talker.text_projection(self._table)
        header = self._writer.ids("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
        rows, following = [], []
        for text, voice in jobs:
            prompt = talker_prompt(ids, header, [], voice)
            tokens = [*self._writer.ids(text), ids.tts_eos]
            row = torch.from_numpy(prompt.text.astype(np.int64)).to(self._device)
            row[-1] = tokens[0]
            codec = torch.from_numpy(prompt.codec.astype(np.int64)).to(self._device)
            rows.append(texts[row] + first[codec.clamp(min=0)] * (codec >= 0)[:, None])
            pads = [ids.tts_pad] * MOST_FRAMES
            following.append([*tokens[1:], *pads][:MOST_FRAMES])
        text_rows = torch.tensor(following, device=self._device)
        x, cache = torch.stack(rows), DynamicCache(config=self._config.talker_config.text_config)
        ends = torch.full((len(jobs),), MOST_FRAMES, device=self._device)
        frames = []
        had = torch.zeros(len(jobs), talker.codec_head.out_features, device=self._device).bool()
        for step in range(MOST_FRAMES):
            hidden = talker.model(inputs_embeds=x, past_key_values=cache, use_cache=True)
            hidden = hidden.last_hidden_state[:, -1]
            logits = talker.codec_head(hidden).float()
            logits[:, CODEBOOK_SIZE : ids.codec_eos] = -1e9
            logits[:, ids.codec_eos + 1 :] = -1e9
            lower = torch.where(logits > 0, logits / self._penalty, logits * self._penalty)
            code = _draw(torch.where(had, lower, logits), temperature, 1.0)
            had.scatter_(1, code[:, None], True)
            ends = torch.where((code == ids.codec_eos) & (ends == MOST_FRAMES), step, ends)
            if bool((ends < MOST_FRAMES).all()):
                break
            code = code.clamp(max=CODEBOOK_SIZE - 1)
            row, inner = (
                torch.stack([hidden, first[code]], 1),
                DynamicCache(config=self._config.talker_config.code_predictor_config),
            )
            frame, embedded = [code], first[code]
            for book in range(NUM_CODEBOOKS - 1):
                made = predictor.model(inputs_embeds=row, past_key_values=inner, use_cache=True)
                logits = predictor.lm_head[book](made.last_hidden_state[:, -1]).float()
                code = _draw(logits, 1.0 if temperature else 0.0, 0.8)
                frame.append(code)
                embedded = embedded + others[book][code]
                row = others[book][code][:, None]
            frames.append(torch.stack(frame, 1))
            x = (embedded + texts[text_rows[:, step]])[:, None]
        every = torch.stack(frames, 2) if frames else ends.new_zeros(len(jobs), NUM_CODEBOOKS, 1)
        return [one[:, : max(1, int(end))] for one, end in zip(every, ends, strict=True)]

    @torch.no_grad()
    def waves(self, codes: list[torch.Tensor]) -> list[npt.NDArray[np.int16]]:
        """Samples at 16 kHz of each."""
        made = []
        for one in codes:
            wave = self._wav(one[None].to(self._device)).flatten().float().cpu().numpy()
            made.append(hearable(wave, VOICE_RATE_HZ))
        return made


def _draw(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    if not temperature:
        return logits.argmax(-1)
    values, index = (logits / temperature).topk(50)
    shares = values.softmax(-1)
    shares = shares.masked_fill(shares.cumsum(-1) - shares > top_p, 0)
    return index.gather(1, torch.multinomial(shares, 1))[:, 0]


_ears: list[Ear] = []


def _hear(samples: npt.NDArray[np.int16]) -> list[str]:
    if not _ears:
        _ears.append(Ear())
    return _ears[0].hear(samples)


@dataclass(frozen=True)
class Heard:
    """What the ear makes of a text in a voice; flite's own sound has no temperature."""

    index: int  # of the text
    text: str
    speaker: str
    temperature: float | None
    words: list[str]
    frames: int

    @property
    def wrong(self) -> int:
        """Wrong words of the text."""
        return errors(words(self.text), self.words)

    @property
    def is_nonsense(self) -> bool:
        """At least half of the text's words are wrong."""
        return self.wrong >= NONSENSE * len(words(self.text))


class Notes:
    """All that was heard of a checkpoint, in a file that says how it was made."""

    def __init__(self, path: Path, origin: dict[str, Any]) -> None:
        self.all: list[Heard] = []
        self._path, self._origin = path, origin
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = json.loads(path.read_text("utf-8"))
            if kept["origin"] != origin:
                raise ValueError(f"{path} is of {kept['origin']}, not of {origin}")
            self.all = [Heard(**one) for one in kept["heard"]]

    def of(self, temperature: float | None) -> dict[int, Heard]:
        """What was said in one way, by the text's index."""
        return {one.index: one for one in self.all if one.temperature == temperature}

    def add(self, batch: list[Heard]) -> None:
        """Save a batch, whole or not at all."""
        self.all += batch
        kept = {"origin": self._origin, "heard": [asdict(one) for one in self.all]}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(kept, indent=0), "utf-8")
        new.replace(self._path)

    def summary(self, temperature: float | None) -> str:
        """Wrong words in 100 per voice, and what did not end or is nonsense, of what was said."""
        ours, theirs = self.of(temperature), self.of(None)
        every = list(ours.values())
        rates = []
        for speaker in SPEAKERS:
            chosen = [one for one in every if one.speaker == speaker]
            total = sum(len(words(one.text)) for one in chosen)
            wrong = sum(one.wrong for one in chosen)
            rates.append(f"{speaker} {100 * wrong / max(1, total):.1f} ({len(chosen)})")
        nonsense = [one for one in every if one.is_nonsense]
        shown = f"{len(every)} texts; wrong words in 100: {', '.join(rates)}"
        shown += f"; half of the words wrong in {len(nonsense)}"
        if temperature is None:
            return f"flite: {shown}"
        alone = sum(not theirs[one.index].is_nonsense for one in nonsense)
        longer = [one.frames - theirs[one.index].frames for one in every]
        return (
            f"temperature {temperature}: {shown}, of {alone} flite's sound is understood; frames "
            f"beside flite's {np.mean(longer):+.1f}, off by {np.mean(np.abs(longer)):.1f}; "
            f"{sum(one.frames < MOST_FRAMES for one in every)} ended by themselves"
        )


def batches(texts: list[str]) -> Iterator[list[int]]:
    """Indexes of texts of about the same length; what comes first is of any length."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    made = [order[at : at + AT_ONCE] for at in range(0, len(order), AT_ONCE)]
    random.Random(1).shuffle(made)
    yield from made


def main() -> None:
    """Print word errors per voice of held-out texts, and how long they are beside flite's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--count", type=int, default=128, help="texts of all voices together")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--penalty", type=float, default=PENALTY, help="of repeated first codes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--flite", default="", help="folder of flite's libraries")
    parser.add_argument("--notes", type=Path, default=Path(".cache/small/heard.json"))
    given = parser.parse_args()
    speed_up()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pick = random.Random(11)
    texts = [to_speak(pick, held_out=True) for _ in range(given.count)]
    speakers = [SPEAKERS[number % len(SPEAKERS)] for number in range(given.count)]
    origin = {"folder": str(given.folder), "count": given.count, "penalty": given.penalty}
    notes = Notes(given.notes, origin)
    voice = Voice(given.folder, device, given.penalty)
    with ProcessPoolExecutor(given.processes) as pool:
        for number, batch in enumerate(batches(texts)):
            jobs = [(texts[index], speakers[index]) for index in batch]
            for temperature in (None, *given.temperature):
                if batch[0] in notes.of(temperature):
                    continue
                if temperature is None:
                    sounds = [trimmed(speak(*job, given.flite)) for job in jobs]
                    frames = [round(len(one) / FRAME_16K) for one in sounds]
                else:
                    torch.manual_seed(number)
                    codes = voice.codes(jobs, temperature)
                    sounds, frames = voice.waves(codes), [one.shape[1] for one in codes]
                made = zip(batch, pool.map(_hear, sounds), frames, strict=True)
                notes.add(
                    [
                        Heard(index, texts[index], speakers[index], temperature, found, length)
                        for index, found, length in made
                    ]
                )
                print(notes.summary(temperature), flush=True)
    for temperature in given.temperature:
        for index, one in notes.of(temperature).items():
            if one.is_nonsense and not notes.of(None)[index].is_nonsense:
                said = f"{one.speaker}: {one.text} -> {' '.join(one.words)}"
                print(f"  temperature {temperature}, {said}", flush=True)


if __name__ == "__main__":
    main()
