"""Items of the input as they are told afterwards: each with an id, in OpenAI's whole form."""

from collections.abc import Mapping, Sequence
from uuid import uuid4

from omnistage.server.responses.items import Item
from omnistage.stage_configs.json_types import Json

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "image_generation_call": "ig",
}
# Keys of what is told; the others of a client's item have no effect.
KEPT = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("summary", "content"),
    "image_generation_call": ("result",),
}


def resource_of(item: Item) -> Json:
    """One item of a checked input."""
    kind = item.get("type") or "message"
    given = item.get("id")
    told = {
        "type": kind,
        "id": given if isinstance(given, str) else f"{PREFIXES[kind]}_{uuid4().hex}",
        "status": "completed",
        **{key: item[key] for key in KEPT[kind] if item.get(key) is not None},
    }
    if kind == "message":
        told["content"] = _content(item)
    if kind == "reasoning":
        told.setdefault("summary", [])
    if kind == "image_generation_call":
        told.setdefault("result", None)
    return told


def _content(item: Item) -> Sequence[Mapping[str, object]]:
    content = item.get("content") or []  # a message that only calls may have none
    is_ours = item["role"] == "assistant"
    if isinstance(content, str):
        content = [{"type": "output_text" if is_ours else "input_text", "text": content}]
    return [_part(part, is_ours) for part in content]


def _part(part: Mapping[str, object], is_ours: bool) -> Mapping[str, object]:
    if part["type"] == "input_image":
        return {"detail": "auto", **part}
    if is_ours and part["type"] == "output_text":
        return {"annotations": [], "logprobs": [], **part}
    return part
