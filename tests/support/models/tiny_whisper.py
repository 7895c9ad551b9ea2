"""A tiny Whisper with random weights, one token per byte, in the layout of the published ones.

Random weights find no end. One channel of the decoder is given to the end: only the positions from
`END_AT` on write to it, and only the end's row of the head, which is the embedding, reads it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|prev|>", "<|notimestamps|>")
NUM_MELS = 80
NUM_POSITIONS = 128
END_AT = 20  # the first position behind which nothing but the end comes
_CHANNEL, _AMOUNT = 0, 100.0


def write_tiny_whisper(folder: Path, seed: int = 0, ends: bool = True) -> None:
    """Write a checkpoint whose transcripts are printable ASCII, and marks that are not text.

    `ends`: else a transcript goes on to the end of the context.
    """
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = [END, START, *(f"<|{code}|>" for code in LANGUAGES), *TASKS]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    named = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END)
    about = {"tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    WhisperFeatureExtractor(feature_size=NUM_MELS).save_pretrained(folder)
    end, start = tokenizer.token_to_id(END), tokenizer.token_to_id(START)
    ids = {"eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_mel_bins=NUM_MELS,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_target_positions=NUM_POSITIONS,
        bos_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.3,
        **ids,
    )
    model = WhisperForConditionalGeneration(config).float().eval()
    unprintable = [n for letter, n in vocabulary.items() if not letter.isascii()]
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[unprintable] = 0
        embedding[:, _CHANNEL] = 0
        embedding[end] = 0
        if ends:
            embedding[end, _CHANNEL] = 1
            model.model.decoder.embed_positions.weight[END_AT:, _CHANNEL] = _AMOUNT
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)


class WhisperReference:
    """The checkpoint of a folder in transformers."""

    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._features = WhisperFeatureExtractor.from_pretrained(folder)
        self._model = WhisperForConditionalGeneration.from_pretrained(folder).float().eval()

    @torch.inference_mode()
    def expected(
        self, samples: Any, language: str | None, task: str, most: int = NUM_POSITIONS
    ) -> tuple[str, list[int], str]:
        """What transformers' model writes behind Whisper's own marks, greedily, and why it ends."""
        features = self._features(samples, sampling_rate=16_000, return_tensors="pt")
        heard = self._model.model.encoder(features.input_features)
        ids = self._ids("startoftranscript")
        if language is None:
            languages = self._ids(*LANGUAGES)
            logits = self._next(heard, ids)[languages]
            (language_id,) = [languages[int(logits.argmax())]]
        else:
            (language_id,) = self._ids(language)
        ids += [language_id, *self._ids(task, "notimestamps")]
        made: list[int] = []
        ended_by = "length"
        while len(made) < most and len(ids) + len(made) < NUM_POSITIONS:
            made.append(int(self._next(heard, ids + made).argmax()))
            if made[-1] == self._tokenizer.eos_token_id:
                made.pop()
                ended_by = "stop"
                break
        return self._tokenizer.decode(made, skip_special_tokens=True), made, ended_by

    def _next(self, heard: Any, ids: list[int]) -> torch.Tensor:
        made = self._model(encoder_outputs=heard, decoder_input_ids=torch.tensor([ids]))
        logits: torch.Tensor = made.logits[0, -1]
        return logits

    def _ids(self, *marks: str) -> list[int]:
        return [self._tokenizer.convert_tokens_to_ids(f"<|{mark}|>") for mark in marks]
