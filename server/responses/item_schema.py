"""The items of `input` as JSON Schema, for the API's description; `items.py` checks them."""

from typing import Any

from omnistage.server.tasks.chat.message_schema import AUDIO, TEXT, Schema


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def _const(value: str) -> dict[str, Any]:
    return {"const": value}


URL: Schema = {"type": "string", "format": "uri", "description": "data, http, https or file"}
PARTS: list[Schema] = [
    _object({"type": _const("input_text"), "text": TEXT}),
    _object({"type": _const("output_text"), "text": TEXT}),
    _object({"type": _const("input_image"), "image_url": URL}),
    _object({"type": _const("input_audio"), "input_audio": AUDIO}),
    _object({"type": _const("input_file")}, {"file_data": URL, "file_url": URL, "filename": TEXT}),
]
CONTENT: Schema = {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": {"anyOf": PARTS}}]}
ROLE: Schema = {"enum": ["user", "assistant", "system", "developer"]}
ITEMS: list[Schema] = [
    _object({"role": ROLE, "content": CONTENT}, {"type": _const("message")}),
    _object({"type": _const("function_call"), "call_id": TEXT, "name": TEXT, "arguments": TEXT}),
    _object({"type": _const("function_call_output"), "call_id": TEXT, "output": CONTENT}),
    _object({"type": _const("reasoning")}, {"content": {"type": "array"}}),
]
INPUT: Schema = {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": {"anyOf": ITEMS}}]}
