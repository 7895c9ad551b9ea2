"""Chats by OpenAI's own client, greedy, and how their usage adds up."""

from typing import Any, Literal

from openai.types.chat import ChatCompletion
from pydantic import BaseModel

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
# The tiny model likes white space, of which JSON may have any amount; a byte is a token.
NO_SPACE = {str(byte): -100 for byte in b"\t\n\r "}
SPOKEN: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "ethan", "format": "pcm16"},
}


class Look(BaseModel):
    """Looks there."""

    at: Literal["left", "right"]
    again: bool


class Go(BaseModel):
    far: bool


def usage_of(completion: ChatCompletion) -> Any:
    assert completion.usage is not None
    usage = completion.usage.model_dump()
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    for side in ("prompt", "completion"):
        details = usage[f"{side}_tokens_details"]
        parts = [details.get(f"{kind}_tokens", 0) for kind in ("text", "audio", "image")]
        assert sum(parts) == usage[f"{side}_tokens"]
    return usage
