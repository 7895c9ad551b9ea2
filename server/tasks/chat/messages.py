"""Checks a conversation, and rewrites what only the gateway knows: audio ids."""

from collections.abc import Collection, Sequence

from omnistage.server.common.errors import ApiError, invalid, unsupported
from omnistage.server.media.parts import checked_part, unknown_part_keys
from omnistage.server.tasks.chat.audio_history import AudioHistory
from omnistage.stage_configs.json_types import Json, JsonMap

ROLES = ("system", "developer", "user", "assistant", "tool")
SENT_ON = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning")
# What our own answers have beside these, as clients send it back.
WITHOUT_EFFECT = ("audio", "refusal", "annotations", "function_call", "reasoning_content")
CAN_BE_SILENT = ("assistant", "tool")  # their content may be empty: calls, no result

Message = JsonMap


def checked_messages(
    messages: Sequence[Message], history: AudioHistory, more_roles: Collection[str] = ()
) -> list[Json]:
    """Return the messages with every part checked and every audio id replaced by what was said.

    `more_roles`: those that the chat template takes beside OpenAI's. Raises ApiError.
    """
    roles = (*ROLES, *more_roles)
    return [_message(one, f"messages[{i}]", history, roles) for i, one in enumerate(messages)]


def unknown_keys(messages: Sequence[Message]) -> list[str]:
    """Keys of checked messages that nobody here knows, and that so have no effect."""
    known = {*SENT_ON, *WITHOUT_EFFECT}
    unknown = []
    for i, message in enumerate(messages):
        unknown += [f"messages[{i}].{key}" for key in sorted(message.keys() - known)]
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            unknown += unknown_part_keys(part, f"messages[{i}].content[{j}]")
    return unknown


def _message(
    message: Message, path: str, history: AudioHistory, roles: Collection[str]
) -> dict[str, object]:
    role = message.get("role")
    if role not in roles:
        raise invalid(f"{path}.role", f"{role!r} is unknown; allowed: {', '.join(roles)}")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise invalid(f"{path}.tool_call_id", "must be a string")
    if "name" in message and not isinstance(message["name"], str):
        raise invalid(f"{path}.name", "must be a string")
    if not isinstance(message.get("reasoning", ""), str | None):
        raise invalid(f"{path}.reasoning", "must be a string")
    if message.get("function_call"):
        raise unsupported(f"{path}.function_call")
    checked = {name: message[name] for name in SENT_ON if message.get(name) is not None}
    audio = message.get("audio")
    if audio is not None and role != "assistant":
        raise invalid(f"{path}.audio", "must be in a message of the assistant")
    if checked.get("content") == [] and role in CAN_BE_SILENT:
        checked["content"] = ""
    if "content" in checked:
        checked["content"] = _content(checked["content"], f"{path}.content")
    if "tool_calls" in checked:
        _check_tool_calls(role, checked["tool_calls"], f"{path}.tool_calls")
    if audio is not None and not checked.get("content"):  # LangChain sends an empty text with it
        checked["content"] = _spoken(audio, f"{path}.audio.id", history)
    if role == "assistant" and "content" not in checked and isinstance(message.get("refusal"), str):
        checked["content"] = message["refusal"]
    if "content" not in checked and not (role == "assistant" and checked.get("tool_calls")):
        raise invalid(f"{path}.content", "must be a string or a list of parts")
    return checked


def _content(content: object, path: str) -> str | list[dict[str, object]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(path, "must be a string or a list of parts")
    return [checked_part(part, f"{path}[{i}]") for i, part in enumerate(content)]


def _check_tool_calls(role: object, calls: object, path: str) -> None:
    if role != "assistant" or not isinstance(calls, list):
        raise invalid(path, "must be a list, in a message of the assistant")
    for number, call in enumerate(calls):
        place = f"{path}[{number}]"
        if not isinstance(call, dict) or not isinstance(call.get("id"), str):
            raise invalid(place, "must be an object with an id, a type and a function")
        if call.get("type") != "function":
            raise invalid(f"{place}.type", "must be function")
        function = call.get("function")
        texts = function if isinstance(function, dict) else {}
        if not all(isinstance(texts.get(key), str) for key in ("name", "arguments")):
            raise invalid(f"{place}.function", "must have a name and arguments, both strings")


def _spoken(audio: object, param: str, history: AudioHistory) -> str:
    audio_id = audio.get("id") if isinstance(audio, dict) else None
    transcript = history.transcript(audio_id) if isinstance(audio_id, str) else None
    if transcript is None:
        message = f"No answer with the audio id {audio_id!r} is known, or it has expired."
        raise ApiError(400, message, param=param, code="audio_not_found")
    return transcript
