"""Lets a recogniser hear a trained talker and code2wav on held-out texts, without a server."""

import argparse
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ear import Ear, errors, words
from samples import Writer
from sizes import CODEBOOK_SIZE, NUM_CODEBOOKS
from texts import to_speak
from towers import speed_up
from transformers import DynamicCache, Qwen3OmniMoeForConditionalGeneration
from utterances import FRAME_16K
from voices import SPEAKERS, speak, trimmed

from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt

MOST_FRAMES = 200
AT_ONCE = 250
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
            places = np.arange(0, len(wave), 1.5)
            heard = np.interp(places, np.arange(len(wave)), wave).clip(-1, 1)
            made.append((heard * 32767).astype(np.int16))
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


@dataclass
class Heard:
    """Texts, their voices, and what the ear makes of one way to say them."""

    texts: list[str]
    speakers: list[str]
    words: list[list[str]]

    def wrong(self, index: int) -> int:
        """Wrong words of a text."""
        return errors(words(self.texts[index]), self.words[index])

    def is_nonsense(self, index: int) -> bool:
        """At least half of a text's words are wrong."""
        return self.wrong(index) >= NONSENSE * len(words(self.texts[index]))

    def rates(self) -> dict[str, float]:
        """Wrong words in 100, per voice."""
        made = {}
        for speaker in SPEAKERS:
            chosen = [index for index, one in enumerate(self.speakers) if one == speaker]
            total = sum(len(words(self.texts[index])) for index in chosen)
            made[speaker] = 100 * sum(map(self.wrong, chosen)) / max(1, total)
        return made


def main() -> None:
    """Print word errors per voice of held-out texts, and how long they are beside flite's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--count", type=int, default=128, help="texts of all voices together")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--penalty", type=float, default=PENALTY, help="of repeated first codes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--flite", default="", help="folder of flite's libraries")
    given = parser.parse_args()
    speed_up()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pick = random.Random(11)
    texts = [to_speak(pick, held_out=True) for _ in range(given.count)]
    speakers = [SPEAKERS[number % len(SPEAKERS)] for number in range(given.count)]
    jobs = list(zip(texts, speakers, strict=True))
    flite = [trimmed(speak(text, speaker, given.flite)) for text, speaker in jobs]
    voice = Voice(given.folder, device, given.penalty)
    with ProcessPoolExecutor(given.processes) as pool:
        theirs = Heard(texts, speakers, list(pool.map(_hear, flite)))
        print(f"flite: {_shown(theirs)}", flush=True)
        for temperature in given.temperature:
            codes = []
            for start in range(0, given.count, AT_ONCE):
                codes += voice.codes(jobs[start : start + AT_ONCE], temperature)
            ours = Heard(texts, speakers, list(pool.map(_hear, voice.waves(codes))))
            longer = [
                one.shape[1] - len(two) / FRAME_16K for one, two in zip(codes, flite, strict=True)
            ]
            ended = sum(one.shape[1] < MOST_FRAMES for one in codes)
            print(
                f"temperature {temperature}: {_shown(ours)}; frames beside flite's "
                f"{np.mean(longer):+.1f}, off by {np.mean(np.abs(longer)):.1f}; "
                f"{ended} of {given.count} ended by themselves",
                flush=True,
            )
            for index in filter(ours.is_nonsense, range(given.count)):
                if not theirs.is_nonsense(index):
                    heard = " ".join(ours.words[index])
                    print(f"  {speakers[index]}: {texts[index]} -> {heard}", flush=True)


def _shown(heard: Heard) -> str:
    rates = ", ".join(f"{who} {rate:.1f}" for who, rate in heard.rates().items())
    nonsense = sum(map(heard.is_nonsense, range(len(heard.texts))))
    return f"wrong words in 100: {rates}; half of the words wrong in {nonsense}"


if __name__ == "__main__":
    main()
