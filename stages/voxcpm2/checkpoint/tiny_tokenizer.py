"""The tiny checkpoint's tokenizer: Llama's way of splitting, a token a character, and bytes."""

import string
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers

from omnistage.stage_configs.json_types import Json

SPACE = "\u2581"
FIRST_AUDIO = 101  # the ids of the four marks are the same in every checkpoint
MARKS = (
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_prompt_start|>",
    "<|audio_prompt_end|>",
)
MERGES = [("t", "h"), ("e", "r"), (SPACE, "th"), ("\u4f60", "\u597d")]
VOCAB_SIZE = 384


def make_tokenizer() -> Tokenizer:
    """The same for every seed."""
    names = ["<unk>", "<s>", "</s>", *(one for one in string.printable if one > " ")]
    names += [SPACE, "\u4f60", "\u597d"]
    names += [f"<unused_{number}>" for number in range(FIRST_AUDIO - len(names))]
    names += [*MARKS, *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [first + second for first, second in MERGES]
    vocabulary = {name: number for number, name in enumerate(names)}
    model: Any = models.BPE(
        vocab=vocabulary, merges=MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    spaces = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(spaces)
    special = [AddedToken(name, special=True, normalized=False) for name in (*names[:3], *MARKS)]
    tokenizer.add_special_tokens(special)
    return tokenizer


def tokenizer_config() -> Json:
    """Returns what tokenizer_config.json says."""
    return {
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": 4096,
    }
