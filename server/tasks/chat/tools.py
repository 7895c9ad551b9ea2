"""Checks tools and the choice among them before the entry stage's chat class reads them.

vLLM's class does not know a choice of several tools (`allowed_tools`): it gets these tools alone.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.tasks.chat.grammar import check_schema
from omnistage.server.tasks.chat.schema import MAX_TOOLS
from omnistage.stage_configs.json_types import JsonMap

CHOICES = ("none", "auto", "required")
MODES = ("auto", "required")
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


Tool = JsonMap
Choice = str | JsonMap | None


def checked_tools(
    tools: Sequence[Tool] | None, choice: Choice
) -> tuple[Sequence[Tool] | None, Choice]:
    """The tools that may be called, and a choice of vLLM's; raises ApiError for what is neither."""
    if tools is not None and not 1 <= len(tools) <= MAX_TOOLS:
        raise invalid("tools", f"must have 1 to {MAX_TOOLS} tools, or be left out")
    by_name = {
        _checked_name(tool, f"tools[{number}]"): tool for number, tool in enumerate(tools or ())
    }
    if isinstance(choice, str):
        _check_word(choice, by_name)
    elif choice is not None and choice.get("type") == "allowed_tools":
        return _allowed(choice, by_name)
    elif choice is not None:
        _check_kind(choice, "tool_choice")
        _named(choice, "tool_choice", by_name)
    return tools, choice


def _checked_name(tool: Any, path: str) -> str:
    """The name of a tool that is one."""
    _check_kind(tool, path)
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{path}.function", "must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(f"{path}.function.name", "must be 1 to 64 letters, digits, _, - or .")
    if not isinstance(function.get("description", ""), str | None):
        raise invalid(f"{path}.function.description", "must be a string")
    if not isinstance(function.get("strict", False), bool | None):
        raise invalid(f"{path}.function.strict", "must be true or false")
    parameters = function.get("parameters")
    if parameters is not None:
        check_schema(parameters, f"{path}.function.parameters")
    return name


def _check_kind(given: Mapping[str, object], path: str) -> None:
    if given.get("type") == "custom":
        raise unsupported(f"{path}.type", f"{path}.type 'custom'")
    if given.get("type") != "function":
        raise invalid(f"{path}.type", "must be function")


def _check_word(choice: str, names: Collection[str]) -> None:
    if choice not in CHOICES:
        raise invalid("tool_choice", f"must be a tool or one of {', '.join(CHOICES)}")
    if not names and choice != "none":
        raise invalid("tool_choice", "needs tools")


def _named(given: Mapping[str, object], path: str, names: Collection[str]) -> str:
    """The name of a tool that is one of `names`."""
    function = given.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in names:
        known = ", ".join(sorted(names)) or "none"
        raise invalid(f"{path}.function.name", f"{name!r} is no tool; tools: {known}")
    return name


def _allowed(
    choice: Mapping[str, object], by_name: Mapping[str, Tool]
) -> tuple[Sequence[Tool], str]:
    path = "tool_choice.allowed_tools"
    allowed = choice.get("allowed_tools")
    if not isinstance(allowed, dict) or allowed.get("mode") not in MODES:
        raise invalid(f"{path}.mode", f"must be one of {', '.join(MODES)}")
    given = allowed.get("tools")
    if not isinstance(given, list) or not given:
        raise invalid(f"{path}.tools", "must be a list of tools, not an empty one")
    names = []
    for number, one in enumerate(given):
        place = f"{path}.tools[{number}]"
        if not isinstance(one, dict):
            raise invalid(place, "must be an object with a type and a function")
        _check_kind(one, place)
        names.append(_named(one, place, by_name))
    return [tool for name, tool in by_name.items() if name in names], allowed["mode"]
