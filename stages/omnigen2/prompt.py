"""The words around a prompt, as OmniGen2 was trained with them."""

from typing import Any

SYSTEM = (
    "You are a helpful assistant that generates high-quality images based on user instructions."
)
MAX_LENGTH = 1024  # tokens of a text in its conversation, as the published scripts cut it
PICTURE = "<|img|>"  # the token with which an answer begins that is a picture


def token_ids(tokenizer: Any, text: str, max_length: int = MAX_LENGTH) -> list[int]:
    """Return the ids of a prompt in its conversation, the first so many of them."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    ids: list[int] = tokenizer(whole).input_ids
    return ids[:max_length]
