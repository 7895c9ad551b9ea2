"""The tiny checkpoint's tokenizer: one token a byte, the role words, and Qwen's special tokens."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from omnistage.stage_configs.json_types import Json

MEDIA_TOKENS = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
)
# Qwen's words of one token that are not special: a decoder shows them.
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
# Where Qwen's tokenizers split a text before its words become tokens.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The config names the roles by one token id each, so each has to be one token.
ROLE_WORDS = ("user", "system", "assistant")

CHAT_TEMPLATE = """\
{%- if tools -%}<|im_start|>system
Tools, each called as <tool_call>{"name": …, "arguments": …}</tool_call>:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.content is string %}{{ message.content }}\
{% elif message.content %}{% for part in message.content -%}
{%- if part.type in ('image', 'image_url') -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type in ('audio', 'audio_url', 'input_audio') -%}\
<|audio_start|><|audio_pad|><|audio_end|>
{%- elif part.type in ('video', 'video_url') -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'text' -%}{{ part.text }}
{%- endif -%}{% endfor %}{% endif %}\
{%- for call in message.tool_calls or [] -%}<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# Of a model that thinks first: its answers begin inside of a thought.
THINKING_TEMPLATE = CHAT_TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif"
)


@dataclass(frozen=True)
class TinyTokenizer:
    """A byte-level BPE tokenizer in which the id of a byte's token is the byte."""

    tokenizer: Tokenizer
    special_tokens: tuple[str, ...] = SPECIAL_TOKENS
    media_tokens: Mapping[str, str] = field(default_factory=lambda: MEDIA_TOKENS)
    processor_class: str = "Qwen3OmniMoeProcessor"

    def id(self, token: str) -> int:
        """The id of a token that is known to exist."""
        token_id = self.tokenizer.token_to_id(token)
        assert token_id is not None, token
        return int(token_id)

    @cached_property
    def padded_size(self) -> int:
        """Rows of the embedding table: the vocabulary rounded up to a multiple of 64."""
        return 64 * math.ceil(self.tokenizer.get_vocab_size() / 64)

    @property
    def config(self) -> Json:
        """Returns what tokenizer_config.json says."""
        return {
            "tokenizer_class": "Qwen2Tokenizer",
            "processor_class": self.processor_class,
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": None,
            "unk_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "errors": "replace",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
            "split_special_tokens": False,
            "extra_special_tokens": dict(self.media_tokens),
            "added_tokens_decoder": {
                str(self.id(token)): {
                    "content": token,
                    "special": token in self.special_tokens,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "single_word": False,
                }
                for token in (*self.special_tokens, *TAGS)
                if self.tokenizer.token_to_id(token) is not None
            },
        }


def make_tokenizer() -> TinyTokenizer:
    """Qwen3-Omni's; it is the same for every seed."""
    return TinyTokenizer(byte_tokenizer(SPECIAL_TOKENS))


def byte_tokenizer(special_tokens: Iterable[str]) -> Tokenizer:
    """One token a byte, a role word, a tag or one of these."""
    vocabulary = {character: byte for byte, character in byte_characters().items()}
    merges = []
    for word in ROLE_WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    tokenizer = byte_level(models.BPE(vocab=vocabulary, merges=merges), special_tokens)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return tokenizer


def byte_level(model: models.BPE, special_tokens: Iterable[str]) -> Tokenizer:
    """A tokenizer of bytes with these special tokens."""
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special_tokens]
    )
    return tokenizer


def byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in sorted(printable)} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }
