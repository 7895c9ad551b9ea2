"""A conversation as JSON Schema, for the API's description.

`messages.py` and `media/parts.py` check it.
"""

from omnistage.stage_configs.json_types import Json

Schema = Json

TEXT: Schema = {"type": "string"}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def _medium(kind: str) -> Schema:
    url = {"type": "string", "format": "uri", "description": "data, http, https or file"}
    return _object({"type": {"const": kind}, kind: _object({"url": url})})


AUDIO = _object({"data": {"type": "string", "contentEncoding": "base64"}, "format": TEXT})
PARTS: list[Schema] = [
    _object({"type": {"const": "text"}, "text": TEXT}),
    _object({"type": {"const": "input_audio"}, "input_audio": AUDIO}),
    *(_medium(kind) for kind in ("image_url", "audio_url", "video_url")),
]
CONTENT: Schema = {
    "anyOf": [TEXT, {"type": "array", "minItems": 1, "items": {"anyOf": PARTS}}],
}
CALL = _object(
    {
        "id": TEXT,
        "type": {"const": "function"},
        "function": _object({"name": TEXT, "arguments": TEXT}),
    }
)
MESSAGES: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            _object(
                {"role": {"enum": ["system", "developer", "user"]}, "content": CONTENT},
                {"name": TEXT},
            ),
            _object({"role": {"const": "assistant"}, "content": CONTENT}),
            _object(
                {
                    "role": {"const": "assistant"},
                    "tool_calls": {"type": "array", "items": CALL, "minItems": 1},
                }
            ),
            _object({"role": {"const": "assistant"}, "audio": _object({"id": TEXT})}),
            _object({"role": {"const": "tool"}, "tool_call_id": TEXT, "content": CONTENT}),
        ]
    },
}
