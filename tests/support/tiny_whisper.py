"""A tiny Whisper with random weights, one token per byte, in the layout of the published ones."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|prev|>", "<|notimestamps|>")
NUM_MELS = 80


def write_tiny_whisper(folder: Path, seed: int = 0) -> None:
    """Write a checkpoint whose transcripts are printable ASCII, and marks that are not text."""
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
        max_target_positions=128,
        bos_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.3,
        **ids,
    )
    model = WhisperForConditionalGeneration(config).float().eval()
    unprintable = [n for letter, n in vocabulary.items() if not letter.isascii()]
    with torch.no_grad():
        model.get_input_embeddings().weight[unprintable] = 0
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
