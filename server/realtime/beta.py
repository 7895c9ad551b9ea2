"""The beta shape of the API: flat fields, which are always understood, and other names of events.

Events have these names only on connections that asked for them by header or subprotocol.
"""

from typing import Any

from omnistage.stage_configs.json_types import Json, JsonMap

FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
FORMAT_NAMES = {ga: beta for beta, ga in FORMATS.items()}
# Flat fields, and where they are now.
INPUT = {
    "input_audio_format": "format",
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
OUTPUT = {"output_audio_format": "format", "voice": "voice", "speed": "speed"}
RENAMED = {"modalities": "output_modalities", "max_response_output_tokens": "max_output_tokens"}
EVENTS = {
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "conversation.item.added": "conversation.item.created",
}
PARTS = {"output_text": "text", "output_audio": "audio"}


def without_flat(given: JsonMap) -> Json:
    """Return fields of a session or a response with beta's in their present places.

    A field in its present place counts where both are there.
    """
    fields = {name: value for name, value in given.items() if name not in (*INPUT, *OUTPUT)}
    for old, new in RENAMED.items():
        if old in fields:
            fields.setdefault(new, fields.pop(old))
    flat = {
        "input": {INPUT[name]: _format(value) for name, value in given.items() if name in INPUT},
        "output": {OUTPUT[name]: _format(value) for name, value in given.items() if name in OUTPUT},
    }
    audio = fields.get("audio")
    if not any(flat.values()) or not isinstance(audio, dict | None):
        return fields
    audio = dict(audio or {})
    for side, moved in flat.items():
        present = audio.get(side)
        if moved and isinstance(present, dict | None):
            audio[side] = {**moved, **(present or {})}
    return {**fields, "audio": audio}


def _format(value: Any) -> Any:
    return {"type": FORMATS[value]} if isinstance(value, str) and value in FORMATS else value


def beta_event(event: Json) -> Json | None:
    """Return a server's event in beta's shape; None for one that beta does not have."""
    kind = event["type"]
    if kind == "conversation.item.done":
        return None
    changed = {**event, "type": EVENTS.get(kind, kind)}
    if "item" in changed:
        changed["item"] = _item(changed["item"])
    if "response" in changed:
        changed["response"] = _response(changed["response"])
    if "session" in changed:
        changed["session"] = beta_session(changed["session"])
        if changed["session"]["object"] == "realtime.transcription_session":
            changed["type"] = f"transcription_{kind}"
    return changed


def _item(item: Json) -> Json:
    if "content" not in item:
        return item
    parts = [{**part, "type": PARTS.get(part["type"], part["type"])} for part in item["content"]]
    return {**item, "content": parts}


def _response(response: Json) -> Json:
    kept = {name: value for name, value in response.items() if name != "audio"}
    output = response["audio"]["output"] if "audio" in response else {}
    kept["modalities"] = _modalities(kept.pop("output_modalities"))
    kept["output"] = [_item(item) for item in kept["output"]]
    if output:
        kept["voice"] = output["voice"]
        kept["output_audio_format"] = FORMAT_NAMES[output["format"]["type"]]
    return kept


def _modalities(modalities: list[str]) -> list[str]:
    return ["audio", "text"] if "audio" in modalities else ["text"]


def beta_session(session: Json) -> Json:
    """Return a session in beta's shape."""
    flat = {
        name: value for name, value in session.items() if name not in ("audio", "type", "include")
    }
    audio = session["audio"]
    for old, new in INPUT.items():
        flat[old] = audio["input"][new]
    flat["input_audio_format"] = FORMAT_NAMES[audio["input"]["format"]["type"]]
    if "output" in audio:
        for old, new in OUTPUT.items():
            flat[old] = audio["output"][new]
        flat["output_audio_format"] = FORMAT_NAMES[audio["output"]["format"]["type"]]
        flat["modalities"] = _modalities(flat.pop("output_modalities"))
        flat["max_response_output_tokens"] = flat.pop("max_output_tokens")
    return flat
