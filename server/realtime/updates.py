"""Updates of a session's settings: given fields over those before, checked."""

from omnistage.server.common.errors import unsupported
from omnistage.server.common.fields import parse
from omnistage.server.realtime.audio_settings import Options
from omnistage.server.realtime.settings import (
    RealtimeSettings,
    ResponseSettings,
    Settings,
    TranscriptionSettings,
)
from omnistage.stage_configs.json_types import Json, JsonMap

# What null says something in; elsewhere it says no more than a field that is left out.
CLEARED = frozenset(
    {
        "idle_timeout_ms",
        "include",
        "noise_reduction",
        "prompt",
        "reasoning",
        "tracing",
        "transcription",
        "turn_detection",
    }
)
# What an update replaces as a whole.
WHOLE = frozenset(
    {"format", "output_modalities", "tool_choice", "tools", "transcription", "truncation"}
)


def updated(settings: Settings, given: JsonMap, place: str = "session") -> Settings:
    """Return settings with the fields of an update, whose type may be another; ApiError.

    `place`: of the fields in what the client has sent; empty: they are all of it.
    """
    kind = given.get("type", settings.type)
    model: type[Settings] = RealtimeSettings
    if kind == "transcription":
        model = TranscriptionSettings
    old = settings.model_dump() if kind == settings.type else model().model_dump()
    changed = parse(model, merged(old, given), place or None)
    check_tools(changed, place)
    return changed


def response_settings(settings: RealtimeSettings, given: JsonMap) -> ResponseSettings:
    """Return what a response is made with: a session's settings with its own; ApiError."""
    names = ResponseSettings.model_fields.keys() & RealtimeSettings.model_fields.keys()
    old = settings.model_dump(include=set(names))
    changed = parse(ResponseSettings, merged(old, given), "response")
    check_tools(changed, "response")
    return changed


def merged(old: JsonMap, given: JsonMap) -> Json:
    """Put given fields over old ones, deeply; null clears some fields, and is nothing in others."""
    result = dict(old)
    for name, value in given.items():
        before = result.get(name)
        if value is None:
            if name in CLEARED:
                result[name] = None
        elif not isinstance(value, dict) or not isinstance(before, dict) or name in WHOLE:
            result[name] = value
        elif name == "turn_detection":
            result[name] = _turn_detection(before, value)
        else:
            result[name] = merged(before, value)
    if isinstance(result.get("turn_detection"), dict):
        result["turn_detection"].setdefault("type", "server_vad")
    return result


def _turn_detection(before: Json, given: Json) -> Json:
    """Replace it whole; one without a type changes fields of the one before."""
    return {**({} if "type" in given else before), **given}


def check_tools(settings: Options, place: str) -> None:
    """Raise ApiError for tools that are no functions of the client's."""
    for number, tool in enumerate(getattr(settings, "tools", ())):
        if tool.get("type") != "function":
            where = f"{place}.tools[{number}].type".removeprefix(".")
            raise unsupported(where, f"{where} {tool.get('type')!r}")
