"""The configuration of speech_tokenizer/ in a Qwen3-TTS checkpoint: tiny, and of real size."""

from pathlib import Path

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.files import read_json, write_json

Config = Json

FOLDER = "speech_tokenizer"
SAMPLE_RATE_HZ = 24_000
TINY_NUM_CODEBOOKS, TINY_CODEBOOK_SIZE = 4, 64


def write_real_size_speech_tokenizer_config(folder: Path) -> None:
    """All of the real `speech_tokenizer/` but its weights: for dummy weights."""
    write_speech_tokenizer_config(folder, real_config())


def write_speech_tokenizer_config(folder: Path, config: Config) -> None:
    """Writes its configuration and that of its feature extractor."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "preprocessor_config.json", _feature_extractor())


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
    return read_json(Path(__file__).with_name("tiny_speech_tokenizer.json"))


def real_config() -> Config:
    """Returns the configuration of Qwen3-TTS-Tokenizer-12Hz."""
    return read_json(Path(__file__).with_name("real_speech_tokenizer.json"))
