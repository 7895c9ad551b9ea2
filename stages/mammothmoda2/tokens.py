"""MammothModa2's tokenizer: tiktoken's file of words, and the names of its other ids."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from transformers.utils.chat_template_utils import render_jinja_template

from omnistage.stages.checkpoint.tokenizer import QWEN_SPLIT

WORDS, IMAGE_TOKENS = "mammothu.tiktoken", "mammothu_vision_tokens.txt"
TEMPLATE = "chat_template.jinja"
# In the order of their ids, behind the words.
MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>"),
    *("<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>"),
    *("</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>"),
    "</think>",
)
# The first ids of images; those that the file names follow.
IMAGE_MARKS = (
    *("<|endofline|>", "<|endoffile|>", "<|gen_placeholder|>", "<|useless token|>"),
    "<|beginoftext|>",
)
IMAGE_START, IMAGE_TOKEN, IMAGE_END = "<|image start|>", "<|image token|>", "<|image end|>"
SEEN = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


class MammothTokenizer:
    """Texts as ids."""

    def __init__(self, folder: Path, first_image_id: int) -> None:
        """`first_image_id`: where the ids of images begin; ids before it may be nobody's."""
        words = load_tiktoken_bpe(str(folder / WORDS))
        named = (folder / IMAGE_TOKENS).read_text(encoding="utf-8").split("\n")
        images = (*IMAGE_MARKS, *(one.strip() for one in named if one.strip()))
        self.ids = {mark: len(words) + number for number, mark in enumerate(MARKS)}
        self.ids |= {mark: first_image_id + number for number, mark in enumerate(images)}
        self._encoding = tiktoken.Encoding(
            "mammothu", pat_str=QWEN_SPLIT, mergeable_ranks=words, special_tokens=self.ids
        )
        self._template = (folder / TEMPLATE).read_text(encoding="utf-8")

    def of(self, messages: Sequence[tuple[str, str]], **told: object) -> list[int]:
        """Return the ids of messages (role, text), as the template writes them."""
        conversation = [
            {"role": role, "content": [{"type": "text", "text": text}]} for role, text in messages
        ]
        rendered, _ = render_jinja_template([conversation], chat_template=self._template, **told)
        text = unicodedata.normalize("NFC", rendered[0])
        return self._encoding.encode(text, allowed_special="all")

    def mark_in(self, text: str) -> str | None:
        """Return a mark that is no word of a text, if one is in it."""
        return next((mark for mark in self.ids if mark in text), None)
