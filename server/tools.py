"""Checks tools and the choice among them before the entry stage's chat class reads them."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from omnistage.server.errors import invalid
from omnistage.server.grammar import check_schema

CHOICES = ("none", "auto", "required")
MAX_TOOLS = 128
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def check_tools(tools: Sequence[Any] | None, choice: Any) -> None:
    """Raise ApiError for what is no tool, or a choice that no tool fits."""
    if tools is not None and not 1 <= len(tools) <= MAX_TOOLS:
        raise invalid("tools", f"must have 1 to {MAX_TOOLS} tools, or be left out")
    names = {_checked_name(tool, f"tools[{number}]") for number, tool in enumerate(tools or ())}
    if choice is not None:
        _check_choice(choice, names)


def _checked_name(tool: Any, path: str) -> str:
    """The name of a tool that is one."""
    if tool.get("type") != "function":
        raise invalid(f"{path}.type", "must be function")
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


def _check_choice(choice: Any, names: Collection[str]) -> None:
    if isinstance(choice, str):
        if choice not in CHOICES:
            raise invalid("tool_choice", f"must be a tool or one of {', '.join(CHOICES)}")
        if not names and choice != "none":
            raise invalid("tool_choice", "needs tools")
        return
    if choice.get("type") != "function":
        raise invalid("tool_choice.type", "must be function")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in names:
        known = ", ".join(sorted(names)) or "none"
        raise invalid("tool_choice.function.name", f"{name!r} is no tool; tools: {known}")
