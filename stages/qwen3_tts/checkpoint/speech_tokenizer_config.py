"""The configuration of speech_tokenizer/ in a Qwen3-TTS checkpoint: tiny, and of real size."""

from pathlib import Path
from typing import Any

from omnistage.stages.checkpoint.files import write_json

Config = dict[str, Any]

FOLDER = "speech_tokenizer"
SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 1920
TINY_NUM_CODEBOOKS, TINY_CODEBOOK_SIZE = 4, 64


def write_real_size_speech_tokenizer_config(folder: Path) -> None:
    """All of the real `speech_tokenizer/` but its weights: for dummy weights."""
    write_speech_tokenizer_config(folder, real_config())


def write_speech_tokenizer_config(folder: Path, config: Config) -> None:
    """Writes its configuration and that of its feature extractor."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "preprocessor_config.json", _feature_extractor())


def _speech_tokenizer(num_codebooks: int, encoder: Config, decoder: Config) -> Config:
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": num_codebooks,
        "input_sample_rate": SAMPLE_RATE_HZ,
        "output_sample_rate": SAMPLE_RATE_HZ,
        "encode_downsample_rate": SAMPLES_PER_FRAME,
        "decode_upsample_rate": SAMPLES_PER_FRAME,
        "encoder_config": {"sampling_rate": SAMPLE_RATE_HZ, "use_causal_conv": True, **encoder},
        "decoder_config": decoder,
    }


def _feature_extractor() -> Config:
    return {
        "feature_extractor_type": "EncodecFeatureExtractor",
        "feature_size": 1,
        "sampling_rate": SAMPLE_RATE_HZ,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "chunk_length_s": None,
        "overlap": None,
    }


def tiny_config() -> Config:
    """Few and narrow layers. Nothing that the real one sets is left at a default of the code."""
    encoder = {
        "num_filters": 4,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 12,
        "upsampling_ratios": [8, 6, 5, 4],
        "upsample_groups": 32,
        "vector_quantization_hidden_dimension": 16,
        "codebook_dim": 16,
        "codebook_size": TINY_CODEBOOK_SIZE,
        "num_quantizers": TINY_NUM_CODEBOOKS + 2,
        "num_semantic_quantizers": 1,
    }
    decoder = {
        "codebook_size": TINY_CODEBOOK_SIZE,
        "num_quantizers": TINY_NUM_CODEBOOKS,
        "codebook_dim": 32,
        "latent_dim": 48,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_theta": 5000,
        "sliding_window": 8,
        "decoder_dim": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "max_position_embeddings": 512,
    }
    return _speech_tokenizer(TINY_NUM_CODEBOOKS, encoder, decoder)


def real_config() -> Config:
    """Returns the configuration of Qwen3-TTS-Tokenizer-12Hz."""
    encoder = {
        "num_filters": 64,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 250,
        "upsampling_ratios": [8, 6, 5, 4],
        "upsample_groups": 512,
        "vector_quantization_hidden_dimension": 256,
        "codebook_dim": 256,
        "codebook_size": 2048,
        "num_quantizers": 32,
        "num_semantic_quantizers": 1,
    }
    decoder = {
        "codebook_size": 2048,
        "num_quantizers": 16,
        "codebook_dim": 512,
        "latent_dim": 1024,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "rope_theta": 10000,
        "sliding_window": 72,
        "decoder_dim": 1536,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "max_position_embeddings": 8000,
        "layer_scale_initial_scale": 0.01,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
    }
    return _speech_tokenizer(16, encoder, decoder)
