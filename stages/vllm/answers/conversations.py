"""Texts and images of a chat's messages, for stages that draw of them."""

from collections.abc import Sequence

from omnistage.stage_configs.json_types import JsonMap


def last_text(messages: Sequence[JsonMap]) -> str:
    """Return the words of the user's last message."""
    last = next((one for one in reversed(messages) if one["role"] == "user"), {})
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def image_urls(messages: Sequence[JsonMap]) -> list[str]:
    """Return the data URLs of a conversation's images, in order."""
    contents = (message.get("content") for message in messages)
    parts = (part for one in contents if isinstance(one, list) for part in one)
    return [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]
