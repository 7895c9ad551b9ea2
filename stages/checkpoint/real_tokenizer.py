"""A tokenizer of the real size: one token a byte, special tokens at Qwen's ids."""

from collections.abc import Iterable
from itertools import islice, product
from string import ascii_lowercase

from tokenizers import Tokenizer, models

from omnistage.stages.checkpoint.tokenizer import TinyTokenizer, byte_characters, byte_level

ROLE_IDS = {"system": 8948, "user": 872, "assistant": 77091}
SPECIAL_TOKENS = (  # from id 151643 on
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>", "<|audio_start|>", "<|audio_end|>"),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"),
)
NUM_ORDINARY = 151643


def make_tokenizer() -> TinyTokenizer:
    """Qwen3-Omni's."""
    return TinyTokenizer(word_tokenizer(SPECIAL_TOKENS))


def word_tokenizer(special_tokens: Iterable[str]) -> Tokenizer:
    """One token a byte, the special tokens and roles at their real ids, a word for any other id.

    A word is a space and four letters, so whatever a model of random weights samples is text.
    """
    vocabulary = dict(ROLE_IDS)
    free = (id for id in range(NUM_ORDINARY) if id not in ROLE_IDS.values())
    vocabulary |= dict(zip(byte_characters().values(), islice(free, 256), strict=True))
    words = product(ascii_lowercase, repeat=4)
    vocabulary |= {"\u0120" + "".join(next(words)): id for id in free}
    model = models.BPE(vocab=vocabulary, merges=[], ignore_merges=True)
    return byte_level(model, special_tokens)


def words(number: int) -> list[str]:
    """Words of one token each, with the space before them."""
    return list(map("".join, islice(product(ascii_lowercase, repeat=4), number)))
