"""Lets a recogniser hear a trained talker and code2wav on held-out texts, without a server."""

import argparse
import random
from concurrent.futures import ProcessPoolExecutor
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


class Voice:
    """Trained parts that speak texts, many at a time, greedily or as served."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32
        )
        self._config, self._writer, self._device = model.config, Writer(), device
        self._ids = SpeechIds.of(model.config)
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
        for step in range(MOST_FRAMES):
            hidden = talker.model(inputs_embeds=x, past_key_values=cache, use_cache=True)
            hidden = hidden.last_hidden_state[:, -1]
            logits = talker.codec_head(hidden).float()
            logits[:, CODEBOOK_SIZE : ids.codec_eos] = -1e9
            logits[:, ids.codec_eos + 1 :] = -1e9
            code = _draw(logits, temperature, 1.0)
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


def main() -> None:
    """Print word errors per voice of held-out texts, and how long they are beside flite's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--count", type=int, default=128, help="texts of all voices together")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--flite", default="", help="folder of flite's libraries")
    given = parser.parse_args()
    speed_up()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pick = random.Random(11)
    voices = []
    for number in range(given.count):
        text, who = to_speak(pick, held_out=True), number % len(SPEAKERS)
        voices.append((text, who, trimmed(speak(text, SPEAKERS[who], given.flite))))
    voice = Voice(given.folder, device)
    codes = voice.codes([(text, SPEAKERS[who]) for text, who, _ in voices], given.temperature)
    waves = voice.waves(codes)
    with ProcessPoolExecutor(given.processes) as pool:
        ours = list(pool.map(_hear, waves))
        theirs = list(pool.map(_hear, [samples for *_, samples in voices]))
    for who, speaker in enumerate(SPEAKERS):
        chosen = [index for index, one in enumerate(voices) if one[1] == who]
        total = sum(len(words(voices[index][0])) for index in chosen)
        wrong = [
            sum(errors(words(voices[index][0]), heard[index]) for index in chosen)
            for heard in (ours, theirs)
        ]
        longer = [codes[index].shape[1] - len(voices[index][2]) / FRAME_16K for index in chosen]
        print(
            f"{speaker}, temperature {given.temperature}: word error "
            f"{100 * wrong[0] / total:.1f} %, of flite's {100 * wrong[1] / total:.1f} % "
            f"({total} words); frames beside flite's {np.mean(longer):+.1f}, "
            f"off by {np.mean(np.abs(longer)):.1f}",
            flush=True,
        )
    for index in range(min(8, given.count)):
        print(f"{voices[index][0]} -> {' '.join(ours[index])}", flush=True)
    ended = sum(one.shape[1] < MOST_FRAMES for one in codes)
    print(f"{ended} of {given.count} ended by themselves", flush=True)


if __name__ == "__main__":
    main()
