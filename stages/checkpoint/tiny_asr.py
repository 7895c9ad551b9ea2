"""A tiny Qwen3-ASR with random weights, whose transcripts are short sentences."""

from pathlib import Path

import torch
from transformers import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.random_weights import (
    PRINTABLE,
    SENTENCE_ENDS,
    with_norm_of_noise,
)
from omnistage.stages.checkpoint.tiny_text import HIDDEN_SIZE, fill_with_noise, text_config
from omnistage.stages.checkpoint.tokenizer import make_tokenizer

# Qwen3-ASR's, but for the length of a piece, which is 30 s: tests of long audio are shorter.
CHUNK_S = 4
_EMBEDDING_SCALE = 0.05
_END_SCALE = 1.6  # how readily a transcript ends
_FEATURES = {
    "feature_extractor_type": "Qwen3ASRFeatureExtractor",
    "processor_class": "Qwen3ASRProcessor",
    "feature_size": 128,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": CHUNK_S,
    "padding_value": 0.0,
    "padding_side": "right",
    "return_attention_mask": True,
    "dither": 0.0,
}
_AUDIO = {
    "num_mel_bins": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "d_model": 64,
    "output_dim": HIDDEN_SIZE,
    "downsample_hidden_size": 16,
    "n_window": 50,
    "n_window_infer": 400,
}


def write_tiny_asr(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint of this seed into a folder, in the layout that transformers reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, {"processor_class": "Qwen3ASRProcessor"})
    write_json(folder / "preprocessor_config.json", _FEATURES)
    end, pad = tokenizer.id("<|im_end|>"), tokenizer.id("<|endoftext|>")
    config = Qwen3ASRConfig(
        audio_config=dict(_AUDIO),
        text_config={**text_config(tokenizer).to_dict(), "tie_word_embeddings": True},
        audio_token_id=tokenizer.id("<|audio_pad|>"),
        eos_token_id=[end, pad],
        pad_token_id=pad,
        tie_word_embeddings=True,
    )
    model = Qwen3ASRForConditionalGeneration(config).float().eval()
    fill_with_noise(model, seed)
    _let_sentences_end(model.get_input_embeddings().weight, end)
    model.generation_config = generation_config(tokenizer)
    model.to(torch.bfloat16).save_pretrained(folder)


@torch.no_grad()
def _let_sentences_end(embedding: torch.Tensor, end: int) -> None:
    """Let only printable ASCII follow, and the end after a full stop or its like.

    The head is the embedding, as Qwen3-ASR's is. It is small, so that what the layers write is not
    hidden by the newest token, which would be repeated.
    """
    printable = _EMBEDDING_SCALE * embedding[PRINTABLE]
    embedding.zero_()
    embedding[PRINTABLE] = printable
    ends = embedding[SENTENCE_ENDS]
    embedding[SENTENCE_ENDS] = ends[0] + 0.4 * ends
    towards = embedding[SENTENCE_ENDS].mean(dim=0) - printable.mean(dim=0)
    embedding[end] = _END_SCALE * _EMBEDDING_SCALE * with_norm_of_noise(towards)
