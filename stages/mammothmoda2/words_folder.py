"""Writes a checkpoint as a folder of Qwen3-VL, which transformers and vLLM can read."""

from pathlib import Path

from huggingface_hub import snapshot_download
from tokenizers import models, normalizers
from transformers import Qwen3VLConfig
from transformers.convert_slow_tokenizer import TikTokenConverter

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.files import write_json
from omnistage.stages.checkpoint.tokenizer import byte_level
from omnistage.stages.mammothmoda2.model_config import ANSWERS, backbone_of
from omnistage.stages.mammothmoda2.tokens import MARKS, TEMPLATE, WORDS

ARCHITECTURE = "OmnistageMammothModa2Words"
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json")
NEEDED = (WORDS, TEMPLATE, PROCESSORS[0])
WEIGHTS = "*.safetensors*"  # with their index
IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
TOKENIZER: Json = {
    "tokenizer_class": "Qwen2Tokenizer",
    "bos_token": None,
    "unk_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": False,
    "model_max_length": 1 << 20,
}


def write_words_folder(model: str, folder: Path) -> None:
    """Write what must be of another form, and links to what is published so.

    Raises ValueError for a model that lacks a file, or whose language model is not served.
    """
    checkpoint = Checkpoint(model)
    missing = [name for name in NEEDED if not checkpoint.has(name)]
    if missing:
        raise ValueError(f"{model} has no {', '.join(missing)}: it cannot answer with words")
    made = qwen3_vl_config(checkpoint.config["llm_config"])
    made.dtype = checkpoint.config.get("torch_dtype") or checkpoint.config.get("dtype")
    made.save_pretrained(folder)
    source = Path(model) if Path(model).is_dir() else Path(snapshot_download(model))
    for file in (*source.glob(WEIGHTS), *(source / name for name in (TEMPLATE, *PROCESSORS))):
        if file.exists():
            (folder / file.name).symlink_to(file.resolve())
    if checkpoint.has(ANSWERS):
        (folder / "generation_config.json").symlink_to((source / ANSWERS).resolve())
    write_tokenizer(source / WORDS, folder)


def qwen3_vl_config(llm: Json) -> Qwen3VLConfig:
    """Return a language model's configuration as transformers knows it, with our architecture."""
    whole, text, rope = backbone_of(llm)
    kept = {name: value for name, value in text.items() if not name.startswith("rope_")}
    vision = {name: value for name, value in whole["vision_config"].items() if name != "model_type"}
    return Qwen3VLConfig(
        text_config={**kept, "model_type": "qwen3_vl_text", "rope_parameters": rope},
        vision_config=vision,
        tie_word_embeddings=False,
        architectures=[ARCHITECTURE],
        **{name: whole[name] for name in IDS if name in whole},
    )


def write_tokenizer(words: Path, folder: Path) -> None:
    """Write tiktoken's file of words, and the marks, as a tokenizer of transformers."""
    vocabulary, merges = TikTokenConverter().extract_vocab_merges_from_model(str(words))
    tokenizer = byte_level(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True), MARKS)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", TOKENIZER)
